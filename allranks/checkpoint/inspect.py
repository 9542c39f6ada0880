"""Show what is in a file: its entries, its tensors, and whose memory they share."""

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allranks.checkpoint.keys import COUNTER, MOST, find_model, plain, weights
from allranks.checkpoint.reading import SHARDS, read
from allranks.checkpoint.refusals import clean

ZERO_3 = (
    "ZeRO-3 keeps the weights in the ranks' *_optim_states.pt files, which "
    "zero_to_fp32.py, beside the folder's files, puts together"
)


def local(value: Any) -> Any:
    """Return what this file holds of a value: of a DTensor, one rank's shard."""
    return getattr(value, "_local_tensor", value)


def memory(value: Any) -> tuple | None:
    """Return a key that is equal for tied tensors, and for no other two."""
    value = local(value)
    if getattr(value, "layout", None) != torch.strided:
        return None
    return value.data_ptr() or id(value), value.dtype, value.shape, value.stride()


def numbers(value: Tensor) -> int:
    """Count the numbers that a tensor stores: fewer than it shows if expanded."""
    value = local(value)
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
            if local(value) is not value:
                what += f", here {list(local(value).shape)} of a DTensor"
            owner = owners.setdefault(memory(value) or id(value), key)
            if owner == key:
                num += numbers(value)
            else:
                what += f", the memory of {clean(owner)}"
        lines.append(f"  {clean(key):{width}}  {what}")
    return [f"{num:,} numbers in {len(state)} entries", *lines]


def incomplete(model: dict, state: dict) -> str:
    """Say why a state dict does not hold its model's weights; "" if it does.

    Args:
        model: the state dict.
        state: the whole file, whose other entries may tell who wrote it.
    """
    tensors = [value for value in model.values() if isinstance(value, Tensor)]
    if any(local(t).shape != t.shape for t in tensors):
        return SHARDS.format("DTensors")
    empty = sum(t.numel() == 0 for t in tensors)
    zero = {"param_shapes", "ds_version"} & {*state}
    if not empty or (empty < len(tensors) and not zero):
        return ""
    why = ZERO_3 if zero else "was it saved on a rank that holds none of the weights?"
    return f"{empty} of its {len(tensors)} tensors are empty: {why}"


def beginnings(keys: list[str]) -> str:
    """Say with which few names the keys begin; "" if they are layers' own."""
    first = Counter(key.partition(".")[0] for key in keys if "." in key)
    if not first or len(first) > 3 or any(name.isdecimal() for name in first):
        return ""
    most = max(first, key=first.__getitem__)
    if not any(key.startswith(f"{most}.") and key.count(".") > 1 for key in keys):
        return ""
    counts = ", ".join(f"{clean(name)}. ({num})" for name, num in first.items())
    text = f"keys begin with {counts}"
    return f"{text}: convert --prefix {clean(most)}. would take these, without it"


def inspect(file: Path, entry: str | None = None, most: int = MOST) -> list[str]:
    """Show what is in a file, and what convert would change."""
    state = read(file)
    name, model = find_model(state, entry)
    head, *rows = table(model)
    lines = [f"{file}, {file.stat().st_size / 1e6:.2f} MB: {head}"]
    if name:
        lines += [f"  {clean(key)}: {clean(value)}" for key, value in state.items()]
    lines += [f"the state dict in {clean(name)}:" if name else "the state dict:", *rows]
    if why := incomplete(model, state):
        return [*lines, f"convert refuses it: {why}"]
    for part in "_orig_mod", "module":
        if num := len([key for key in model if f".{part}." in f".{key}"]):
            lines.append(f"{num} of {len(model)} keys contain {part}.")
    kept = weights(model)
    if len(kept) < len(model):
        lines.append(f"convert leaves out {COUNTER}, AveragedModel's own")
    new = [*plain(kept, most)]
    if some := beginnings(new):
        lines.append(some)
    for old, to in zip(kept, new, strict=True):
        if old != to:
            return [*lines, f"convert turns {clean(old)} into {clean(to)}"]
    return [*lines, "convert leaves all keys as they are"]
