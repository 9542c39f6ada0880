"""An operation of torch's, as the tape keeps it."""

from typing import NamedTuple

import torch

SMALL = 4096  # elements; a larger tensor that is no parameter is data
FEW = 16  # entries of a table that need not be shorter than what is looked up
SCALES = "mul", "div"


class Taken(NamedTuple):
    """A tensor that an operation takes."""

    argument: int
    storage: int
    tensor: torch.Tensor | None  # a copy, or a parameter; None: it is too large
    trained: bool


class Operation(NamedTuple):
    """One call of one of torch's operators."""

    name: str
    line: str
    loader: object  # the iterator of a DataLoader that fetches, or None
    fetches: bool  # it is part of the next() of epoch's loader
    takes: set[int]  # storages
    gives: set[int]
    leaves: list[Taken]  # what was there before the step
    factors: list[Taken]  # what was made in it, and stands for all samples
    numbers: list[tuple[int, float]]  # Python's, by argument
    codes: bool  # it looks up a short table by numbers that come again: labels
    unseen: bool  # ranks speak to each other, and autograd does not know
    summed: bool  # what it takes has a gradient, and was summed over the ranks in place
    shape: tuple  # of the result
    count: torch.Tensor | None  # what a mean is divided by


def flat(values) -> list[tuple[int, object]]:
    """Arguments, and those in lists of lists, each with its place."""
    found = []
    for at, value in enumerate(values):
        deep = isinstance(value, list | tuple)
        found += [(at, x) for _, x in flat(value)] if deep else [(at, value)]
    return found


def stands_for_all(shape: tuple, other: tuple) -> bool:
    """Whether a tensor is broadcast along the first dim of another: the samples'."""
    if len(shape) != len(other):
        return len(shape) < len(other)
    return not shape or shape[0] == 1


def divisor(name: str, args: tuple, ins: list, factors: list) -> torch.Tensor | None:
    """What a number or a whole tensor is divided by, if one number is it."""
    if name != "div":
        return None
    if factors and factors[-1].argument == ins[1][0] and not ins[1][1].dim():
        return factors[-1].tensor
    if len(ins) == 1 and ins[0][1].numel() == 1:
        return torch.tensor(float(args[1]), device="cpu")
    return None


def looks_up(ins: list) -> bool:
    """Whether a short table is read by numbers that come again: by labels."""
    table, found = ins[0][1], ins[-1][1]
    if table.dim() != 1 or not table.is_floating_point() or found.is_floating_point():
        return False
    if table.numel() > max(found.numel(), FEW) or found.dtype == torch.bool:
        return False
    return found.unique().numel() < found.numel()


def kept(tensor: torch.Tensor) -> torch.Tensor | None:
    """What can be looked at later: a copy of a small tensor, or a parameter."""
    if isinstance(tensor, torch.nn.Parameter):
        return tensor
    if tensor.numel() > SMALL or type(tensor) is not torch.Tensor or tensor.is_meta:
        return None
    return tensor.detach().clone()
