"""What a loader, a data set and a batch say about themselves."""

from collections.abc import Mapping

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from .datasets import fingerprint
from .digests import number, settle, sums

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


def leaves(batch) -> list:
    """The tensors and other values in nested dicts, lists and tuples."""
    if isinstance(batch, Mapping):
        return [leaf for key in batch for leaf in leaves(batch[key])]
    if isinstance(batch, list | tuple):
        return [leaf for item in batch for leaf in leaves(item)]
    return [batch]


def batch_rows(batch) -> int:
    """How many samples a batch holds: the first dim of its first tensor."""
    sizes = [x.shape[0] for x in leaves(batch) if torch.is_tensor(x) and x.dim()]
    return sizes[0] if sizes else len(leaves(batch))


def row_digests(batch, numbers: bool = True) -> list[int]:
    """One number for each sample, from all tensors of the batch (or its values).

    Args:
        numbers: these are samples, not steps or indices by which the loop takes its.
    """
    count = batch_rows(batch)
    found = leaves(batch)
    full = [x for x in found if torch.is_tensor(x) and x.dim() and len(x) == count]
    if any(not isinstance(x, PLAIN) for x in found):
        return []  # an object's text may be alike where the object is not
    if not numbers and all(map(_chooses, found)):
        return []
    if full:
        rest = [
            x for x in found if torch.is_tensor(x) and not (x.dim() and len(x) == count)
        ]
        rows = [sums([*(x[i] for x in full), *rest]) for i in range(count)]
        return settle([rows])[0][0]
    return [number(str([x.tolist() if torch.is_tensor(x) else x for x in found]))]


def _chooses(leaf) -> bool:
    """Whether it is a number, or a row of whole numbers."""
    if not torch.is_tensor(leaf):
        return isinstance(leaf, int | float)
    return leaf.dim() < 2 and not (leaf.is_floating_point() or leaf.is_complex())


def facts(loader) -> dict[str, int]:
    """What a loader says about itself; -1 where it says nothing."""
    outer, loader = loader, inner(loader)
    sampler = sampler_of(loader)
    found = dict.fromkeys(FACTS, -1)
    found["length"] = _length(outer)
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
    if hasattr(dataset, "__getitem__") and _length(dataset) >= 0:
        found["samples"] = len(dataset)
        found["dataset"], known = fingerprint(dataset)
        found["known"] = int(known)
        plain = type(sampler) in (RandomSampler, SequentialSampler)
        batches = getattr(loader, "batch_sampler", None)
        plain = plain and type(batches) in (BatchSampler, type(None))
        found["whole"] = int(plain and _length(sampler) == len(dataset))
    return found


def inner(loader):
    """The DataLoader in what wraps one, such as a prefetcher; else the thing itself."""
    if isinstance(loader, DataLoader) or not hasattr(loader, "__dict__"):
        return loader
    held = [x for x in vars(loader).values() if isinstance(x, DataLoader)]
    return held[0] if len(held) == 1 else loader


def sampler_of(loader):
    """What chooses a loader's samples; None if nothing does."""
    loader = inner(loader)
    batches = getattr(loader, "batch_sampler", None)
    if batches is not None:  # one without a sampler draws for itself
        return getattr(batches, "sampler", batches)
    return getattr(loader, "sampler", None)


def _length(thing) -> int:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return -1  # an iterable without a length
