"""What a data set says of itself: what it holds, and in which order."""

import os
from collections.abc import Mapping
from pathlib import PurePath

import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    Subset,
    TensorDataset,
)

from .digests import digest_all, number

HEAD = 1024  # entries that are digested of a longer list, spread over it
WORD = str, bytes, int, float, PurePath, type(None)
STATISTICS = "mean", "std", "var", "min", "max", "scale"


def fingerprint(dataset, depth: int = 3) -> tuple[int, bool]:
    """A number for what a data set holds, 0 if it tells nothing; and if that is all.

    A data set of a class of its own is known by those of its attributes that have an
    entry for each sample: file names, labels, indices. There may be more to it.
    """
    if isinstance(dataset, Subset):
        inner, whole = fingerprint(dataset.dataset, depth)
        inner = inner or number(type(dataset.dataset).__name__)
        return number(f"{inner} {[str(index) for index in dataset.indices]}"), whole
    if isinstance(dataset, ConcatDataset):
        parts = [fingerprint(part, depth) for part in dataset.datasets]
        return number(str(parts)), all(whole for _, whole in parts)
    if isinstance(dataset, TensorDataset):
        heads = [t[:HEAD].contiguous() for t in dataset.tensors]
        return number(f"{[len(t) for t in dataset.tensors]} {digest_all(heads)}"), True
    own = entries(dataset)
    if own:
        return own, True
    parts, count = [], _length(dataset)
    for key, value in sorted(_attributes(dataset).items()):
        if isinstance(value, Dataset) and depth:
            parts.append(f"{key} {fingerprint(value, depth - 1)[0]}")
        elif count > 1 and _length(value) == count:
            parts.append(f"{key} {entries(value)}")
        elif key.lstrip("_").startswith(STATISTICS):
            parts.append(f"{key} {_statistic(value)}")
    parts = [part for part in parts if not part.endswith(" 0")]
    return (number(str(parts)) if parts else 0), False


def entries(value) -> int:
    """A number for a sequence's entries and their order; 0 if it cannot be told."""
    try:
        if torch.is_tensor(value):
            return digest_all([value[_spread(len(value))].contiguous()])
        if isinstance(value, range):
            return number(str(value))
        if hasattr(value, "iloc"):  # a DataFrame
            value = value.iloc[_spread(len(value))].to_numpy().tolist()
        elif hasattr(value, "dtype") and hasattr(value, "tolist"):  # an array
            value = value[_spread(len(value))].tolist()
        elif isinstance(value, Mapping):
            value = list(value.items())
        if not isinstance(value, list | tuple):
            return 0
        found = [value[i] for i in _spread(len(value))]
        if found and all(map(torch.is_tensor, found)):
            return digest_all([x.contiguous() for x in found])
        flat = [x if isinstance(x, list | tuple) else (x,) for x in found]
        if any(not isinstance(x, WORD) for row in flat for x in row):
            return 0
        return number(str([_without_root(column) for column in zip(*flat)]))  # noqa: B905
    except (TypeError, ValueError, IndexError, KeyError, RuntimeError):
        return 0  # a class of its own that answers in its own way


def _spread(count: int) -> list[int]:
    return list(range(count)) if count <= HEAD else list(range(0, count, count // HEAD))


def _without_root(column) -> list:
    """Paths without the folder that all begin with: it may be another on each node."""
    texts = [str(x) if isinstance(x, PurePath) else x for x in column]
    if len(texts) < 2 or not all(isinstance(x, str) for x in texts):
        return texts
    root = os.path.commonpath(texts)
    return [x[len(root) :] for x in texts]


def _statistic(value) -> int:
    if type(value) is float:
        return number(repr(value))
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return number(str(value.tolist())) if _numel(value) <= HEAD else 0
    return 0


def _numel(value) -> int:
    return value.numel() if torch.is_tensor(value) else value.size


def _attributes(thing) -> dict:
    return vars(thing) if hasattr(thing, "__dict__") else {}


def _length(thing) -> int:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return -1  # an iterable without a length
