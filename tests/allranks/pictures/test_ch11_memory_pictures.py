"""A selective checkpoint keeps some, and free pieces are too small one by one."""

import pytest

from allranks.pictures import ch11_memory
from allranks.topics.memory import sums
from tests.allranks.pictures.drawing import refuses


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ch11_memory.ways", r"(torch, selective +)[\d.]+", r"\1 999.00"),
        ("ch11_memory.ways", r"(torch, selective.*) \d+%", r"\1 199%"),
    ],
)
def test_numbers_that_contradict_the_title_are_refused(name, old, new):
    """A title is a claim, so another result needs another title."""
    refuses(name, old, new)


def test_pieces_too_small_one_by_one_hold_no_large_tensor(monkeypatch):
    """4 GB are free in pieces of 1, 1 and 2; in one piece, they are enough."""
    asked = *ch11_memory.TENSORS, ch11_memory.ASKED
    assert ch11_memory.best_fit((ch11_memory.GPU,), asked) == [[*asked, 0]]
    with pytest.raises(ValueError, match="no piece of 4"):
        ch11_memory.best_fit(ch11_memory.TAKEN, asked)
    assert "no place for 4" in ch11_memory.pieces().html
    monkeypatch.setattr(ch11_memory, "ASKED", 2)  # which a piece can hold
    with pytest.raises(ValueError, match="contradict the title"):
        ch11_memory.pieces()


def test_links_and_operations_are_those_of_the_script():
    """What is hidden at the script's least width is all, and just so."""
    from scripts import ch11_offload

    assert [*ch11_memory.LINKS.values()] == [*ch11_offload.LINKS.values()]
    assert ch11_memory.FLOPS == ch11_offload.FLOPS
    for rate in ch11_offload.LINKS.values():
        least = 32 / 24 * ch11_offload.FLOPS / rate
        assert ch11_memory.share(int(least) + 1, rate) == 1
        assert ch11_memory.share(int(least / 2), rate) == pytest.approx(0.5, rel=1e-2)


def test_chunks_hold_what_the_figure_says(monkeypatch):
    """Three tensors of the logits' size, and one gradient in their place."""
    model = sums.MODELS["llama8b"][1]._replace(layers=1)
    sizes = model.dim, model.words, model.tokens
    assert sizes == (ch11_memory.DIM, ch11_memory.WORDS, ch11_memory.TOKENS)
    most = []
    for chunks in 1, ch11_memory.TOKENS // ch11_memory.CHUNK:
        spans = sums.step(model, sums.Training(1, "fp32", loss_chunks=chunks))
        (top,) = (s for s in spans if s.name in ("loss, backward", "head and loss"))
        _, _, _, gradients, _, logits, temporary = top.held
        most.append(gradients + logits + temporary)
    most[1] -= sums.sizes(model, sums.Training(1, "fp32")).vector
    text = ch11_memory.chunks().html
    assert all(f"{size / 1e9:.1f} GB" in text for size in most)
    monkeypatch.setattr(ch11_memory, "CHUNK", 4096)
    with pytest.raises(ValueError, match="contradict the title"):
        ch11_memory.chunks()
