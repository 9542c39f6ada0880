"""What a loader tells about itself, and what a batch holds."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from allranks.guard.datasets import fingerprint, length
from allranks.guard.digests import as_bytes, number, settle, sums
from allranks.guard.exchange import Exchange, GuardError

FACTS = [
    "length",
    "replicas",
    "share",
    "seed",
    "epoch",
    "shuffle",
    "samples",
    "total",
    "dataset",
    "known",
    "whole",
    "stale",
    "drawn",
    "workers",
    "codes",
    "settings",
]
PLAIN = (torch.Tensor, int, float, str, bytes, type(None))
JOINING = "preflight, joining the ranks' batches"


def inner(loader: Any) -> Any:
    """Return the DataLoader in an object that wraps one, else the object itself."""
    if isinstance(loader, DataLoader) or not hasattr(loader, "__dict__"):
        return loader
    held = [x for x in vars(loader).values() if isinstance(x, DataLoader)]
    return held[0] if len(held) == 1 else loader


def sampler_of(loader: Any) -> Any:
    """Return the object that chooses a loader's samples; None if there is none."""
    loader = inner(loader)
    batches = getattr(loader, "batch_sampler", None)
    if batches is not None:  # a batch sampler without a sampler draws for itself
        return getattr(batches, "sampler", batches)
    return getattr(loader, "sampler", None)


def facts(loader: Iterable) -> dict[str, int]:
    """Return the ``FACTS`` of a loader, with -1 for those that it does not tell."""
    outer, loader = loader, inner(loader)
    sampler = sampler_of(loader)
    found = dict.fromkeys(FACTS, -1)
    found["length"] = length(outer)
    if isinstance(getattr(sampler, "num_replicas", None), int):
        found["replicas"] = sampler.num_replicas
        found["share"] = int(getattr(sampler, "rank", -1))
        found["seed"] = int(getattr(sampler, "seed", None) or 0)
        found["epoch"] = int(getattr(sampler, "epoch", None) or 0)
        found["total"] = int(getattr(sampler, "total_size", -1))
        if hasattr(sampler, "epoch") and hasattr(sampler, "set_epoch"):
            found["shuffle"] = int(bool(getattr(sampler, "shuffle", True)))
    found["drawn"] = int(bool(getattr(sampler, "replacement", False)))
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, IterableDataset):
        found["workers"] = int(getattr(loader, "num_workers", 0))
    if hasattr(dataset, "__getitem__") and length(dataset) >= 0:
        found["samples"] = len(dataset)
        found["dataset"], known = fingerprint(dataset)
        found["known"] = int(known)
        plain = type(sampler) in (RandomSampler, SequentialSampler)
        batches = getattr(loader, "batch_sampler", None)
        plain = plain and type(batches) in (BatchSampler, type(None))
        found["whole"] = int(plain and length(sampler) == len(dataset))
    return found


def leaves(batch: Any) -> list[Any]:
    """List the tensors and other values in nested dicts, lists and tuples."""
    if isinstance(batch, Mapping):
        return [leaf for key in batch for leaf in leaves(batch[key])]
    if isinstance(batch, list | tuple):
        return [leaf for item in batch for leaf in leaves(item)]
    return [batch]


def batch_rows(batch: Any) -> int:
    """Count the samples in a batch, by the first dim of its first tensor."""
    sizes = [x.shape[0] for x in leaves(batch) if torch.is_tensor(x) and x.dim()]
    return sizes[0] if sizes else len(leaves(batch))


def row_digests(batch: Any, numbers: bool = True) -> list[int]:
    """Return one number for each sample, from all tensors of the batch (or its values).

    Args:
        batch: tensors in dicts, lists and tuples.
        numbers: whether whole numbers are samples; otherwise they may be the indices
            by which the loop takes its samples.

    Returns:
        The numbers; none if the samples cannot be told apart.
    """
    count = batch_rows(batch)
    found = leaves(batch)
    full = [x for x in found if torch.is_tensor(x) and x.dim() and len(x) == count]
    if any(not isinstance(x, PLAIN) for x in found):
        return []  # different objects may have the same text
    if not numbers and all(map(_chooses, found)):
        return []
    if full:
        rest = [
            x for x in found if torch.is_tensor(x) and not (x.dim() and len(x) == count)
        ]
        rows = [sums([*(x[i] for x in full), *rest]) for i in range(count)]
        return settle([rows])[0][0]
    return [number(str([x.tolist() if torch.is_tensor(x) else x for x in found]))]


def _chooses(leaf: Any) -> bool:
    """Tell whether a leaf is a number, or a row of whole numbers."""
    if not torch.is_tensor(leaf):
        return isinstance(leaf, int | float)
    return leaf.dim() < 2 and not (leaf.is_floating_point() or leaf.is_complex())


def union(exchange: Exchange, batches: list[Any], where: str = JOINING) -> Any:
    """Join the batches of all ranks, on every rank, with tensors along dim 0."""
    own = error = None
    try:
        own = _columns(batches)
    except (TypeError, ValueError, RuntimeError) as found:
        error = found
    exchange.agree(where, error)
    return _exchanged(exchange, own, where)


def _columns(batches: list[Any]) -> Any:
    """Join this rank's batches into one that is nested as each of them is."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {key: _columns([batch[key] for batch in batches]) for key in first}
    if isinstance(first, list | tuple):
        columns = map(list, zip(*batches, strict=True))
        return _like(first, map(_columns, columns))
    if torch.is_tensor(first):
        return torch.cat(batches) if first.dim() else first
    if not isinstance(first, PLAIN):
        raise TypeError(
            f"a batch holds a {type(first).__name__}; tensors in dicts, lists and "
            "tuples can be joined. Give those, and build it from them in the function"
        )
    return first


def _exchanged(exchange: Exchange, own: Any, where: str) -> Any:
    if isinstance(own, dict):
        return {key: _exchanged(exchange, value, where) for key, value in own.items()}
    if isinstance(own, list | tuple):
        return _like(own, [_exchanged(exchange, value, where) for value in own])
    if not torch.is_tensor(own) or not own.dim():
        return own
    rows = exchange.integers(where, [number(str(own.dtype)), *own.shape])
    shapes = [row[1:] for row in rows]
    if len({row[0] for row in rows}) > 1:
        dtypes = exchange.by_ranks(exchange.texts(str(own.dtype)))
        raise GuardError(
            f"{where}: the ranks' tensors are {dtypes}. Cast them to one dtype, also "
            "on a rank that has no samples."
        )
    if len({tuple(shape[1:]) for shape in shapes}) > 1:
        raise GuardError(
            f"{where}: the ranks' batches have the shapes {shapes}, by rank. Pad or "
            "cut them to one shape."
        )
    parts = exchange.bytes(where, as_bytes(own.detach()))
    whole = [
        part.clone().view(own.dtype).view(shape)
        for part, shape in zip(parts, shapes, strict=True)
    ]
    return torch.cat(whole).to(own.device)


def _like(first: list | tuple, items: Iterable) -> list | tuple:
    return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
