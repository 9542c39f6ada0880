"""Functions over lists of tensors, which may be on several devices: ``_foreach_*``.

CUDA groups an optimizer's tensors by device, and makes one call for each group. A list
of tensors on several devices is cut into such groups here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

_group = torch._C._group_tensors_by_device_and_dtype


def group(
    tensorlists: Sequence[Sequence[torch.Tensor]], with_indices: bool = False
) -> dict:
    """Group lists by the device and dtype of the first, as torch does in C++.

    Returns:
        ``{(device, dtype): (lists, indices)}``, without indices unless asked for.
    """
    first = tensorlists[0]
    if all(tensor.device.type == "cpu" for tensor in first):
        return _group(tensorlists, with_indices)
    groups: dict = {}
    for index, tensor in enumerate(first):
        key = (tensor.device, tensor.dtype)
        lists, indices = groups.setdefault(key, ([[] for _ in tensorlists], []))
        for column, source in zip(lists, tensorlists, strict=True):
            column += source[index : index + 1]
        if with_indices:
            indices.append(index)
    return groups


def call_by_device(
    func: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor] | None:
    """Call a ``_foreach`` function once per device, and restore the results' order."""
    # Each pair may be on two devices, so there is no group that one call could take.
    if func is torch._foreach_copy_:
        for target, source in zip(*args[:2], strict=True):
            target.copy_(source, *args[2:], **kwargs)
        return None
    first = next(arg for arg in args if isinstance(arg, (list, tuple)))
    rows: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(first):
        rows.setdefault(tensor.device, []).append(index)
    if len(rows) == 1:
        return func(*args, **kwargs)

    # A list as long as the first is cut, too; anything else is common to all groups.
    def pick(arg: Any, wanted: list[int]) -> Any:
        listed = isinstance(arg, (list, tuple)) and len(arg) == len(first)
        return [arg[index] for index in wanted] if listed else arg

    found = [None] * len(first)
    for wanted in rows.values():
        named = {key: pick(value, wanted) for key, value in kwargs.items()}
        made = func(*[pick(arg, wanted) for arg in args], **named)
        for index, one in zip(wanted, made or (), strict=False):
            found[index] = one
    return None if made is None else found
