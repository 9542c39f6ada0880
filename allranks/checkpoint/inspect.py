"""Show what is in a file: its entries, its tensors, and whose memory they share."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allranks.checkpoint.keys import MOST, find_model, plain
from allranks.checkpoint.reading import read
from allranks.checkpoint.refusals import clean


def memory(value: Any) -> tuple | None:
    """Return a key that is equal for tied tensors, and for no other two."""
    if getattr(value, "layout", None) != torch.strided:
        return None
    return value.data_ptr() or id(value), value.dtype, value.shape, value.stride()


def numbers(value: Tensor) -> int:
    """Count the numbers that a tensor stores: fewer than it shows if expanded."""
    if value.layout != torch.strided:
        return value.numel()
    return min(value.numel(), value.untyped_storage().nbytes() // value.itemsize)


def table(state: dict) -> list[str]:
    """Return a line with a count, and a line for each entry.

    An entry's line has its key, dtype and shape, and the entry whose memory it shares.
    Tied tensors are counted once.
    """
    lines, owners, num = [], {}, 0
    width = max(len(clean(key)) for key in state)
    for key, value in state.items():
        what = clean(value)
        if isinstance(value, Tensor):
            kind = "" if value.layout == torch.strided else f" {value.layout}"
            what = f"{value.dtype}{kind} {list(value.shape)}".replace("torch.", "")
            owner = owners.setdefault(memory(value) or id(value), key)
            if owner == key:
                num += numbers(value)
            else:
                what += f", the memory of {clean(owner)}"
        lines.append(f"  {clean(key):{width}}  {what}")
    return [f"{num:,} numbers in {len(state)} entries", *lines]


def inspect(file: Path, entry: str | None = None, most: int = MOST) -> list[str]:
    """Show what is in a file, and what convert would change."""
    state = read(file)
    name, model = find_model(state, entry)
    head, *rows = table(model)
    lines = [f"{file}, {file.stat().st_size / 1e6:.2f} MB: {head}"]
    if name:
        lines += [f"  {clean(key)}: {clean(value)}" for key, value in state.items()]
    lines += [f"the state dict in {clean(name)}:" if name else "the state dict:", *rows]
    for part in "_orig_mod", "module":
        if num := len([key for key in model if f".{part}." in f".{key}"]):
            lines.append(f"{num} of {len(model)} keys contain {part}.")
    for old, new in zip(model, plain(model, most), strict=True):
        if old != new:
            return [*lines, f"convert turns {clean(old)} into {clean(new)}"]
    return [*lines, "convert leaves all keys as they are"]
