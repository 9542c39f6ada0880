"""Chapter 6's split layers equal the unsplit ones, on any number of ranks."""

import pytest
import torch

from allranks import Ranks
from scripts import ch6_tensor

FLAGS = ["--steps=20", "--width=13", "--batch-size=8"]  # 13: no rank count divides it


@pytest.fixture(scope="module")
def crews():
    """Yield groups of one to four live ranks."""
    crews = {world_size: Ranks(world_size) for world_size in (1, 2, 3, 4)}
    yield crews
    for ranks in crews.values():
        ranks.close()


def run_layers():
    """Return outputs and gradients of two layers on a live rank, whole and split."""
    import torch
    from torch import nn

    from scripts import ch6_tensor

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    x = torch.randn(5, 7)
    wide, narrow = nn.Linear(7, 13), nn.Linear(13, 3)
    split = ch6_tensor.ColumnLinear(wide), ch6_tensor.RowLinear(narrow)
    both = []
    for first, second in (wide, narrow), split:
        inputs = x.clone().requires_grad_()
        output = second(first(inputs).relu())
        output.square().sum().backward()
        weights = first.weight.grad, first.bias.grad, second.weight.grad
        both.append((output.detach(), inputs.grad, *weights, +second.bias.grad))
        second.bias.grad = None  # the split layer has the same bias
    return both


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_column_then_row_is_the_unsplit_pair(world_size, crews):
    """Outputs and gradients agree, with the gradients of all parts put together."""
    by_rank = crews[world_size].run(run_layers)
    whole = by_rank[0][0]
    parts = list(zip(*(split for _, split in by_rank), strict=True))
    for right, found in zip(whole[:2], parts[:2], strict=True):
        for value in found:  # the same on all ranks
            torch.testing.assert_close(value, right, rtol=0, atol=1e-10)
    assert len(parts[2]) == world_size
    for i, dim in (2, 0), (3, 0), (4, 1):
        joined = torch.cat(parts[i], dim=dim)
        torch.testing.assert_close(joined, whole[i], rtol=0, atol=1e-10)
    for value in parts[5]:
        torch.testing.assert_close(value, whole[5], rtol=0, atol=1e-10)


def run_train(flags):
    """Return the losses of train() on a live rank, and the shapes it all-reduces."""
    import torch
    import torch.distributed as dist

    from scripts import ch6_tensor

    torch.set_default_dtype(torch.float64)
    args = ch6_tensor.parse_args(flags)
    place = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    all_reduce, calls = dist.all_reduce, []
    dist.all_reduce = lambda x: (calls.append(tuple(x.shape)), all_reduce(x))
    try:
        return torch.stack(ch6_tensor.train(args, *place)), calls
    finally:
        dist.all_reduce = all_reduce


def test_training_follows_the_unsplit_net(crews):
    """20 steps give the same curve, with one all_reduce in each forward pass."""
    ((one, _),) = crews[1].run(run_train, FLAGS, quiet=True)
    for world_size in (2, 4):
        for losses, calls in crews[world_size].run(run_train, FLAGS, quiet=True):
            torch.testing.assert_close(losses, one, rtol=0, atol=1e-10)
            assert calls == [(8, 10)] * 20  # the images need no gradient


@pytest.mark.parametrize("flag", ["--width=0", "--steps=-1", "--lr=nan"])
def test_refuses_impossible_numbers(flag):
    with pytest.raises(
        SystemExit, match=r" (0|-1|nan): must be (1 to \d+|1e-30 to 1e\+30)$"
    ):
        ch6_tensor.parse_args([flag])


def test_refuses_more_ranks_than_outputs():
    args = ch6_tensor.parse_args(["--width=2"])
    with pytest.raises(SystemExit, match=r"^3 ranks > width 2$"):
        ch6_tensor.train(args, 0, 3, torch.device("cpu"))
