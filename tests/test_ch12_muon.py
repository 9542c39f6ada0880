"""Muon on matrices dealt out to ranks is Muon; on parts of matrices it is not."""

import re

import pytest
import torch

from allranks import Ranks
from scripts import ch12_muon, optim
from tests.ranks import run_on

START = """
import warnings
from types import SimpleNamespace
import scripts
import ch12_muon
from ch12_replicas import off

warnings.filterwarnings("ignore", "FSDP2-wrapped module")
args, place = SimpleNamespace(layers=3, seed=0), (world_size, device)

def alone(steps=2):
    how = ch12_muon.Muon, ch12_muon.GPT.parameters
    return ch12_muon.train(*how, args, steps, slice(None), *place)[0]

def train(make, ignored):
    return ch12_muon.train(make, ignored, args, 2, rank, *place)

def blocks(weights):
    return [n for n in weights if "blocks" in n and weights[n].dim() == 2]
"""


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids="W={}".format)
def ranks(request):
    """Yield live ranks; the GPT's three matrices of a shape fit 1 and 3 of them."""
    with Ranks(request.param) as ranks:
        ranks.run(START, quiet=True)
        yield ranks


def test_dealt_out_matrices_end_where_one_process_does(ranks):
    """So does all that AdamW updates; and a rank keeps and sends what it should."""
    found = ranks.run(
        """
theirs, (ours, meter) = alone(), train(ch12_muon.Dealt, ch12_muon.matrices)
num = sum(ours[n].numel() for n in blocks(ours))
off(ours, theirs), len(ours), meter.held["states"] / num, meter.sent / 2 / num
""",
        quiet=True,
    )
    size = ranks.world_size
    padded = -(-3 // size) * size / 3  # as many of a shape on each rank
    for gap, num, states, sent in found:
        assert gap < 1e-12 and num == 2 + 3 * 12 + 4
        assert states == pytest.approx(8 * padded / size)
        assert sent == pytest.approx(2 * 8 * padded * (1 - 1 / size))


def test_parts_of_matrices_go_elsewhere_and_nothing_says_so(ranks):
    """Steps of the right length, and they lead 30 % or more off course."""
    found = ranks.run(
        """
zero, one, ours = alone(0), alone(), train(ch12_muon.Cut, lambda net: [])[0]
names = blocks(ours)
path = ch12_muon.length(one, zero, names)
apart = ch12_muon.length(ours, one, names) / path
apart.item(), (ch12_muon.length(ours, zero, names) / path).item()
""",
        quiet=True,
    )
    for apart, long in found:
        assert 0.9 < long < 1.1
        assert apart < 1e-12 if ranks.world_size == 1 else 0.3 < apart < 1.5


def test_torchs_muon_is_right_under_fsdp2(ranks):
    """Its products are those of DTensors, which gather what they need."""
    found = ranks.run(
        """
import copy
from torch import nn
from torch.distributed.fsdp import fully_shard

def ends(net, x):
    optimizer = torch.optim.Muon(net.parameters(), 0.1)
    for _ in range(2):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.weight.detach()

torch.manual_seed(0)
net, x = nn.Linear(8, 6, bias=False), torch.randn(world_size, 5, 8)
alone, start = copy.deepcopy(net), net.weight.detach().clone()
ours, theirs = ends(fully_shard(net), x[rank]), ends(alone, x.flatten(0, 1))
ours = ours.full_tensor()
((ours - theirs).norm() / (theirs - start).norm()).item()
""",
        quiet=True,
    )
    assert max(found) < 1e-2  # it computes in bfloat16


@pytest.mark.parametrize("shape", [(3, 8, 5), (3, 5, 8), (1, 6, 6)])
def test_newton_schulz_leaves_directions_and_evens_lengths(shape):
    """The result has the singular vectors of its input, and values near 1."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    core = u.mT @ optim.orthogonal(x) @ v.mT  # diagonal, in the same basis
    values = core.diagonal(dim1=-2, dim2=-1)
    assert values.min() > 0.5 and values.max() < 1.3
    assert (core - torch.diag_embed(values)).abs().max() < 1e-9


def test_rows_of_an_orthogonal_matrix_are_not_what_rows_give():
    """A matrix of two equal halves: as a whole it has half the directions."""
    half = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).double()
    whole = optim.orthogonal(torch.cat([half, half])[None])[0]
    apart = optim.orthogonal(torch.stack([half, half])).flatten(0, 1)
    lengths = [torch.linalg.matrix_norm(m, 2).item() for m in (whole, apart)]
    assert lengths[0] < 1.3 and lengths[1] > 0.5 * 2**0.5 * 1.3


def test_the_script_prints_both():
    with Ranks(2) as ranks:
        dealt, cut = run_on(ranks, "ch12_muon", "--steps=2", "--layers=2")[0]
    number = r"weights (\S+) off: steps (\S+) times as long, (\d+)% off course; "
    tail = "momentum 4.00, sent {} bytes per number"
    for line, name, sent in (dealt, "dealt out", "8.00"), (cut, "cut", "0.00"):
        assert line.startswith(f"[rank 0/2] {name}") and line.endswith(
            tail.format(sent)
        )
    gap, long, apart = re.search(number, dealt).groups()
    assert float(gap) < 1e-12 and long == "1.00" and apart == "0"
    gap, long, apart = re.search(number, cut).groups()
    assert float(gap) > 1e-3 and 30 < int(apart) < 150


def test_impossible_flags_are_refused():
    with pytest.raises(SystemExit, match=r"^--layers 0: must be 1 to 65536$"):
        ch12_muon.parse_args(["--layers=0"])
