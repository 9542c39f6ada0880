"""The ledger counts what autograd keeps, moment by moment, as formulas say."""

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scripts import ch11_ledger as script
from scripts import ch11_memory

SIZES = ["", "--width 64 --layers 2 --words 512", "--width 96 --layers 5 --tokens 32"]


class Llama(nn.Module):
    """A layer with RMSNorm, grouped heads that are rotated, and SwiGLU."""

    def __init__(self, dim: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.size, small = dim // heads, groups * (dim // heads)
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        linear = lambda a, b: nn.Linear(a, b, bias=False)  # noqa: E731
        self.q, self.o = linear(dim, dim), linear(dim, dim)
        self.k, self.v = linear(dim, small), linear(dim, small)
        self.gate, self.up = linear(dim, hidden), linear(dim, hidden)
        self.down = linear(hidden, dim)

    def forward(self, x, cos, sin):
        """Map (B, T, dim) to the same; cos and sin are (T, size)."""
        h = self.norm1(x)
        q, k, v = (
            part.unflatten(-1, (-1, self.size)).transpose(1, 2)
            for part in (self.q(h), self.k(h), self.v(h))
        )
        q, k = (
            part * cos + torch.cat(part.chunk(2, -1)[::-1], -1) * sin for part in (q, k)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@pytest.mark.parametrize(
    "dim, heads, groups, hidden", [(64, 4, 2, 172), (128, 8, 2, 344), (96, 6, 1, 256)]
)
def test_a_llama_layer_keeps_what_the_formula_says(dim, heads, groups, hidden):
    """Per token: 8 vectors of the width, keys, values, 4 of the hidden layer.

    The CPU's RMSNorm keeps its input, the input over its root mean square, and that
    root; its output is the next layers' input: 3 vectors each. Queries and attention's
    output are the other two. Keys and values are as many as there are groups.
    """
    batch, tokens = 3, 40
    net = Llama(dim, heads, groups, hidden)
    ledger = script.Ledger({"layer": [net]}, torch.optim.SGD(net.parameters()))
    x = torch.randn(batch, tokens, dim, requires_grad=True)  # as inside a model
    cos, sin = torch.randn(2, tokens, dim // heads)
    with ledger.watch():
        net(x, cos, sin).sum().backward()
    row = ledger.rows[0][1]
    kept = 8 * dim + 2 * dim // heads * groups + 4 * hidden + 2 + heads
    tables = cos.untyped_storage().nbytes()  # cos and sin lie in one
    assert row["activations"] == 4 * batch * tokens * kept + tables
    matrices = 2 * dim * dim * (1 + groups / heads) + 3 * dim * hidden + 2 * dim
    assert row["weights"] == 4 * matrices
    assert ledger.activations == 0


@pytest.mark.parametrize("flags", SIZES)
def test_a_gpts_step_is_as_predicted_and_as_torch_counts(flags):
    """Each kind at its moment, to the byte; torch counts the loss's four as well."""
    args = script.parse_args(flags.split())
    net, optimizer, x, y = script.make(args)
    ledger = script.Ledger(script.parts_of(net), optimizer)
    for _ in range(2):
        ledger.rows.clear()
        with ledger.watch():
            script.step(net, optimizer, x, y, ledger.note)
    rows, wanted = dict(ledger.rows), script.predict(args)
    torchs = ch11_memory.track(net, optimizer, x, y)
    for moment in "loss", "step", "zero_grad":
        row, found = rows[moment], torchs[moment]
        assert row["weights"] == found["Parameter"] == wanted["weights"]
        assert row["gradients"] == found["Gradient"]
        assert row["optimizer"] == found["Optstate"] == wanted["optimizer"]
        kept = found["Activation"] + found["Other"] - 4
        outside = x.nbytes + y.nbytes  # torch counts x and y before and after, too
        assert row["activations"] == kept - (outside if moment != "loss" else 0)
    assert rows["loss"]["activations"] == wanted["activations"]
    assert rows["step"]["gradients"] == wanted["gradients"]


def test_rows_go_through_the_net_and_back():
    """Activations grow by equal steps in forward, and shrink by them in backward."""
    net, optimizer, x, y = script.make(script.parse_args(["--layers", "4"]))
    ledger = script.Ledger(script.parts_of(net), optimizer)
    with ledger.watch():
        script.step(net, optimizer, x, y, ledger.note)
    there = ["embeddings", *(f"block {i}" for i in range(4)), "head"]
    moments = [moment for moment, _ in ledger.rows]
    forward = [f"forward {name}" for name in there]
    backward = [f"backward {name}" for name in reversed(there)]
    assert moments == [*forward, "loss", *backward, "step", "zero_grad"]
    kept = {moment: row["activations"] for moment, row in ledger.rows}
    for i in range(1, 5):
        growth = kept[forward[i]] - kept[forward[i - 1]]
        assert growth == 4 * 512 * (16 * 128 + 4 + 4)
        assert kept[f"backward {there[i]}"] == kept[forward[i - 1]]
    assert kept["step"] == 0


def test_a_storage_counts_once_and_until_its_last_user_is_gone():
    """Here two products keep views of one tensor, and one a tensor of its own."""
    a, b = (nn.Parameter(torch.ones(4)) for _ in range(2))
    one = nn.ParameterList([a, b])
    ledger = script.Ledger({"all": [one]}, torch.optim.SGD(one.parameters()))
    x = torch.ones(8)
    with ledger.watch():
        first, second = a * x[:4], b * x[4:]
        third = second * torch.full((4,), 2.0)
    assert ledger.activations == x.nbytes + 16
    first.sum().backward()
    assert ledger.activations == x.nbytes + 16
    third.sum().backward()
    assert ledger.activations == 0


def test_what_is_dropped_without_backward_is_no_longer_counted():
    """Also what an operation keeps of its own output, as exp does."""
    net = nn.Linear(4, 4)
    ledger = script.Ledger({"all": [net]}, torch.optim.SGD(net.parameters()))
    gc.disable()  # a cycle would live on
    try:
        with ledger.watch():
            loss = net(torch.ones(2, 4)).exp().sum()
        assert ledger.activations == 2 * 2 * 4 * 4
        del loss
        assert ledger.activations == 0
    finally:
        gc.enable()


def test_tied_weights_count_once():
    """A weight of two parts is one weight, with one gradient."""
    first, last = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
    last.weight = first.weight
    net = nn.Sequential(first, last)
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    ledger = script.Ledger({"first": [first], "last": [last]}, optimizer)
    net(torch.arange(3)).sum().backward()
    optimizer.step()
    ledger.note("end")
    row = ledger.rows[-1][1]
    assert row["weights"] == row["gradients"] == row["optimizer"] == 160


def test_the_script_prints_a_short_table(capsys):
    """At most six blocks there and back, and no difference from the prediction."""
    for layers, blocks in ("3", 6), ("8", 8), ("12", 6):
        script.main(script.parse_args(["--width", "32", "--layers", layers]))
        head, *rows, peak, gap = capsys.readouterr().out.splitlines()
        assert max(map(len, rows)) <= 79 and len(rows) == blocks + 7
        assert head.split()[:2] == ["MB", "weights"]
        assert peak.startswith("the peak is at: loss, ")
        assert gap == "largest difference from the formula: 0 bytes"


def test_under_autocast_a_layer_keeps_its_weights_in_two_bytes_as_well():
    """2 bytes more for each parameter, until backward has gone through the layer."""
    net = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(3)))
    ledger = script.Ledger({"all": [net]}, torch.optim.SGD(net.parameters()))
    x = torch.randn(5, 32, requires_grad=True)
    with ledger.watch(), torch.autocast("cpu", torch.bfloat16):
        y = net(x)
    copies, inputs = 2 * 3 * 32 * 32, 2 * 3 * 5 * 32
    assert ledger.activations == copies + inputs
    y.float().sum().backward()
    assert ledger.activations == 0
