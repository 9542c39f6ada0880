"""Which tensors may meet in one function: those of one device, and a few others.

Where torch's C++ iterates over tensors element by element, a number on the host may be
among tensors on a GPU. Its other functions take no such number, and an index may be on
the host where what is indexed is not.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

functorch = torch._C._functorch
SENTENCE = (
    "Expected all tensors to be on the same device, "
    "but found at least two devices, {} and {}!"
)
# Functions that do not iterate so: a tensor without dims is like any other for them.
NAMES = """
    cat concat concatenate stack hstack vstack dstack row_stack column_stack
    embedding index_select gather scatter scatter_ scatter_add scatter_add_ index_add
    index_add_ index_copy index_copy_ take take_along_dim equal nll_loss cross_entropy
    cross_entropy_loss"""
STRICT = {*NAMES.split()}
ASSIGNS = {"__setitem__", "index_put_", "index_put"}


def check(leaves: Iterable[Any], numbers: bool = True) -> None:
    """Raise torch's own error unless all tensors are on one device.

    Args:
        leaves: the arguments of a function.
        numbers: whether a number may be on the host.
    """
    first = found = None
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            where = leaf.device
            if numbers and leaf.dim() == 0 and where.type == "cpu":
                continue
            if functorch.is_functorch_wrapped_tensor(leaf):
                continue  # of vmap or jvp: it hides where the tensor inside is
            if found is not None and where != found:
                error = RuntimeError(SENTENCE.format(found, where))
                error.tensors = first, leaf  # for who wants to say where they are from
                raise error
            first, found = leaf, where


def check_indices(tensor: torch.Tensor, index: Any, *value: Any) -> None:
    """Raise torch's own error if an index, or what is assigned there, is elsewhere.

    A slice is filled by a copy, which may come from anywhere. What is assigned at
    places that a tensor or a list names must be on the same device, or be a number.
    """
    device = tensor.device
    for one in pytree.tree_leaves(index):
        where = one.device if isinstance(one, torch.Tensor) else device
        if where != device and where.type != "cpu":
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the "
                f"indexed tensor ({device})"
            )
    parts = index if isinstance(index, tuple) else (index,)
    places = [part for part in parts if _names_places(part)]
    given = [one for one in value if isinstance(one, torch.Tensor)]
    if len(places) == 1 and getattr(places[0], "dtype", None) == torch.bool:
        given = [one for one in given if one.numel() > 1]  # a mask takes a number, too
    if places:
        check([tensor, *given])


def _names_places(part: Any) -> bool:
    """Tell whether a part of an index is a tensor or a list, and not one place."""
    if isinstance(part, torch.Tensor):
        return part.dim() > 0 or part.dtype == torch.bool
    return isinstance(part, (list, range, np.ndarray))
