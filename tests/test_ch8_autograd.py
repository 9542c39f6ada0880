"""Each collective's backward is the derivative of its forward, across ranks."""

import pytest

from allranks import Ranks
from tests.ranks import run_script

START = """
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as nn_functional
from torch.autograd import gradcheck
from scripts.ch8_autograd import *

W, group = world_size, dist.group.WORLD
OURS = {
    "all_reduce": AllReduce.apply, "all_gather": AllGather.apply,
    "reduce_scatter": ReduceScatter.apply, "all_to_all": AllToAll.apply,
    "broadcast": lambda x: Broadcast.apply(x, W - 1),
}
THEIRS = {
    "all_reduce": lambda x: functional.all_reduce(x, "sum", group),
    "all_gather": lambda x: functional.all_gather_single(x, 0, group).view(W, -1),
    "reduce_scatter": lambda x: functional.reduce_scatter_single(
        x.flatten(), "sum", 0, group),
    "all_to_all": lambda x: functional.all_to_all_single_autograd(
        x, None, None, group),
    "broadcast": lambda x: functional.broadcast(x, W - 1, group),
}
NN = {
    "all_reduce": lambda x: nn_functional.all_reduce(x.clone()),
    "all_gather": lambda x: torch.stack(nn_functional.all_gather(x)),
    "broadcast": lambda x: nn_functional.broadcast(x.clone(), W - 1),
}

def shape(name):
    return (W, 3) if name in ("reduce_scatter", "all_to_all") else (3,)

def both(calls, name):
    # The output, and the gradient of a loss that differs on each rank.
    torch.manual_seed(rank)
    x = torch.randn(shape(name), dtype=torch.double, requires_grad=True)
    y = calls[name](x)
    (y * torch.randn(y.shape, dtype=torch.double)).sum().backward()
    return y.detach(), x.grad

def gaps(name, theirs):
    # How far torch's output and gradient are from ours.
    pairs = zip(both(OURS, name), both(theirs, name))
    return [(a - b).abs().max().item() for a, b in pairs]
"""
NAMES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]


@pytest.fixture(scope="module", params=[1, 2, 3], ids="W={}".format)
def ranks(request):
    """Yield live ranks that have our functions and torch's."""
    with Ranks(request.param) as ranks:
        ranks.run(START, quiet=True)
        yield ranks


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck_across_ranks(ranks, name):
    """Of the collective inside something that is not linear, and twice in a row."""
    source = f"""
once, twice = OURS[{name!r}], lambda x: OURS[{name!r}](x.sin()).cos()
[passes(call, shape({name!r}), torch.device("cpu")) for call in (once, twice)]
"""
    assert ranks.run(source, quiet=True) == [[True, True]] * ranks.world_size


@pytest.mark.parametrize("name", NAMES)
def test_a_backward_that_stays_on_its_rank_is_found(ranks, name):
    """A backward that forgets the other ranks is right on one rank only."""
    source = f"""
class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return OURS[{name!r}](x)
    @staticmethod
    def backward(ctx, grad):
        mine = {{"all_gather": lambda: grad[rank],
                "reduce_scatter": lambda: grad.expand(W, -1)}}
        return mine.get({name!r}, lambda: grad)()

passes(Wrong.apply, shape({name!r}), torch.device("cpu"))
"""
    assert ranks.run(source, quiet=True) == [ranks.world_size == 1] * ranks.world_size


@pytest.mark.parametrize("name", NAMES)
def test_how_a_tensor_lies_in_memory_changes_nothing(ranks, name):
    """Not even if it is transposed on one rank only, or if its gradient is."""
    source = f"""
def laid(lay):
    torch.manual_seed(rank)
    x = torch.randn(W, 4, 3).transpose(1, 2)
    leaf = lay(x).detach().requires_grad_()
    y = OURS[{name!r}](leaf)
    weights = torch.randn(*y.shape[:-2], 4, 3).transpose(-1, -2)
    (grad,) = torch.autograd.grad(y, leaf, lay(weights))
    return y, grad
mixed = laid(lambda x: x if rank == 0 else x.contiguous())
[torch.equal(a, b) for a, b in zip(mixed, laid(lambda x: x.contiguous()))]
"""
    assert ranks.run(source, quiet=True) == [[True, True]] * ranks.world_size


def test_a_plain_all_reduce_adds_up_memory():
    """Transposed on one rank only, what is added does not belong together."""
    source = """
x = torch.arange(4.0).view(2, 2)
mine = x if rank == 0 else x.t().contiguous().t()  # the same numbers
ours = AllReduce.apply(mine)
dist.all_reduce(plain := mine.clone())
torch.equal(mine, x), ours.tolist(), plain.tolist()
"""
    ours, wrong = [[0, 2], [4, 6]], [[0, 3], [3, 6]]
    with Ranks(2) as ranks:
        ranks.run(START, quiet=True)
        assert ranks.run(source, quiet=True) == [(True, ours, wrong)] * 2


@pytest.mark.parametrize("name", NAMES)
def test_torchs_functional_collectives(ranks, name):
    """They give our outputs and gradients, but for a broadcast's gradient."""
    source = f"gaps({name!r}, THEIRS)"
    for output, gradient in ranks.run(source, quiet=True):
        assert output < 1e-12
        if name == "broadcast" and ranks.world_size > 1:
            assert gradient > 1e-3  # the page says so
        else:
            assert gradient < 1e-12


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "broadcast"])
def test_torch_distributed_nn(ranks, name):
    """The older functions agree with ours in both directions."""
    source = f"gaps({name!r}, NN)"
    for gaps in ranks.run(source, quiet=True):
        assert max(gaps) < 1e-12


def test_a_plain_all_reduce_leaves_gradients_on_their_rank(ranks):
    """It raises nothing: autograd does not see it."""
    source = """
def plain(x):
    y = x * 1
    dist.all_reduce(y)
    return y

def grad(call):
    x = torch.ones((), requires_grad=True)
    (call(x) * (rank + 1)).backward()
    return x.grad.item()

grad(plain), grad(AllReduce.apply)
"""
    size = ranks.world_size
    wanted = [(rank + 1, size * (size + 1) / 2) for rank in range(size)]
    assert ranks.run(source, quiet=True) == wanted


def test_the_script_checks_all_five():
    lines = run_script("ch8_autograd", 2, "--numbers", "2")[0]
    names = "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AllToAll"
    assert lines == [f"[rank 0/2] {n}: its backward is its derivative" for n in names]
