"""In chunks, the loss and its gradients are the same, and the logits never exist."""

import re
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from scripts import ch11_loss as script
from scripts import ch11_memory


def both(loss_of, tokens, dim, words, size, dtype=torch.float64, scale=1.0):
    """Return a loss, and the gradients of its input and of the layer."""
    torch.manual_seed(tokens * words)
    h = torch.randn(tokens, dim, dtype=dtype, requires_grad=True)
    head = nn.Linear(dim, words, dtype=dtype)
    loss = loss_of(h, head, torch.randint(words, (tokens,)), size)
    (loss * scale).backward()
    return loss.detach(), h.grad, head.weight.grad, head.bias.grad


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(2, 50), st.integers(1, 45))
def test_loss_and_gradients_are_those_of_the_whole(tokens, dim, words, size):
    """For any chunk, also one that is not whole or is larger than the batch."""
    shape = tokens, dim, words, size
    whole, chunks = both(script.plain, *shape), both(script.ours, *shape)
    torch.testing.assert_close(chunks, whole, rtol=0, atol=1e-12)


def test_float32_is_within_rounding():
    """Each gradient within 64 roundings of its largest number."""
    shape = 512, 64, 1000, 32
    whole = both(script.plain, *shape, dtype=torch.float32)
    for found, right in zip(
        both(script.ours, *shape, dtype=torch.float32), whole, strict=True
    ):
        bound = 64 * 2**-24 * right.abs().max().item()
        torch.testing.assert_close(found, right, rtol=0, atol=bound)


def test_a_scaled_loss_has_scaled_gradients():
    """As a scaler for fp16 makes them, or a mean over passes."""
    shape = 12, 5, 20, 4
    whole = both(script.plain, *shape, scale=-3.5)
    chunks = both(script.ours, *shape, scale=-3.5)
    torch.testing.assert_close(chunks, whole, rtol=0, atol=1e-12)


def test_large_logits_do_not_overflow():
    """exp(1000) is inf, so what is largest must go before."""
    h = torch.tensor([[1000.0], [-1000.0]], requires_grad=True)
    head, y = nn.Linear(1, 2), torch.tensor([0, 1])
    loss = script.ours(h, head, y, 1)
    right = F.cross_entropy(head(h), y)
    torch.testing.assert_close(loss, right)
    loss.backward()
    assert h.grad.isfinite().all()


def test_a_second_backward_is_refused():
    """The first has scaled the gradients in place."""
    h, head = torch.ones(2, 3, requires_grad=True), nn.Linear(3, 4)
    loss = script.ours(h, head, torch.tensor([1, 2]), 1)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def sizes(flags: str):
    """Return what is predicted, and what torch counts of plain and ours."""
    args = script.parse_args(f"{flags} --layers 1".split(), chunk=16)
    found = []
    for way in script.plain, script.ours, script.torchs:
        net, *rest = script.make(args)
        todo = partial(script.run, loss_of=partial(way, size=args.chunk))
        found.append(ch11_memory.track(script.Trunk(net), *rest, todo))
    return args, script.forecast(args), found


@pytest.mark.parametrize(
    "flags",
    ["--words 8192", "--width 64 --words 4000", "--width 96 --tokens 32 --words 5000"],
)
def test_what_is_kept_is_as_predicted_and_the_peak_is_lower(flags):
    """The logits are never there thrice; three chunks and one gradient are."""
    args, wanted, found = sizes(flags)
    for size, kept in zip(found, wanted, strict=True):
        loss = size["loss"]
        assert loss["Activation"] + loss["Other"] - 4 == kept
    logits = 4 * args.batch_size * args.tokens * args.words
    chunk, layer = 4 * args.chunk * args.words, 4 * args.words * (args.width + 1)
    saved = found[0]["peak"]["Total"] - found[1]["peak"]["Total"]
    assert saved > 3 * logits - 3 * chunk - layer


def test_it_costs_no_product_more():
    """Three for each chunk: logits, and the gradients of input and weight."""

    def in_place(_, a, b, **__) -> int:  # which the counter does not know
        return 2 * a[0] * a[1] * b[1]

    counts, more = [], {torch.ops.aten.addmm_: in_place}
    for loss_of in script.plain, script.ours:
        with FlopCounterMode(display=False, custom_mapping=more) as counter:
            both(loss_of, 24, 8, 32, 8)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * 24 * 8 * 32


def test_the_script_prints_a_line_for_each_way(capsys):
    flags = {"words": 512, "layers": 1, "chunk": 64, "rounds": 1, "width": 32}
    threads = torch.get_num_threads()
    script.main(script.parse_args([], **flags))
    torch.set_num_threads(threads)
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["plain", "ours", "torch"]
    for row in rows:
        _, kept, wanted, peak, seconds, *_ = row.split()
        assert kept == wanted and float(peak) > float(kept) and float(seconds) > 0
        assert float(re.search(r"(\S+), loss=", row)[1]) < 1e-6
    assert len({row.split("loss=")[1][:6] for row in rows}) == 1


def test_a_chunk_of_nothing_is_refused():
    with pytest.raises(SystemExit, match=r"^--chunk 0: must be 1 to 65536$"):
        script.parse_args(["--chunk", "0"], chunk=64)
