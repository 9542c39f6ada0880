"""A selective checkpoint keeps some, and free pieces are too small one by one."""

import pytest

from allranks.pictures import ch11_memory
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
