"""What a loader, a data set and a batch say about themselves."""

import torch
from torch.utils.data import DistributedSampler, Subset, TensorDataset

from .digests import digest, digest_all, number

FACTS = [
    "length",
    "replicas",
    "share",
    "seed",
    "epoch",
    "shuffle",
    "samples",
    "batches",
    "dataset",
]


def leaves(batch) -> list:
    """The tensors and other values in nested dicts, lists and tuples."""
    if isinstance(batch, dict):
        return [leaf for key in batch for leaf in leaves(batch[key])]
    if isinstance(batch, list | tuple):
        return [leaf for item in batch for leaf in leaves(item)]
    return [batch]


def batch_rows(batch) -> int:
    """How many samples a batch holds: the first dim of its first tensor."""
    sizes = [x.shape[0] for x in leaves(batch) if torch.is_tensor(x) and x.dim()]
    return sizes[0] if sizes else len(leaves(batch))


def row_digests(batch) -> list[int]:
    """One number for each sample, from all tensors of the batch (or its values)."""
    count = batch_rows(batch)
    found = leaves(batch)
    full = [x for x in found if torch.is_tensor(x) and x.dim() and len(x) == count]
    if full:
        return [digest_all([x[i] for x in full]) for i in range(count)]
    return [number(str([x.tolist() if torch.is_tensor(x) else x for x in found]))]


def fingerprint(dataset) -> int:
    """What a data set in memory holds, as a number; 0 if that cannot be told."""
    if isinstance(dataset, Subset):
        inner = fingerprint(dataset.dataset) or number(type(dataset.dataset).__name__)
        return number(f"{inner} {int(digest(torch.as_tensor(list(dataset.indices))))}")
    if isinstance(dataset, TensorDataset):
        heads = [t[:1024].contiguous() for t in dataset.tensors]
        return number(f"{[len(t) for t in dataset.tensors]} {digest_all(heads)}")
    if isinstance(dataset, range) or (
        isinstance(dataset, list) and all(isinstance(x, int | float) for x in dataset)
    ):
        return number(str(list(dataset[:1024])))
    return 0


def facts(loader) -> dict[str, int]:
    """What a loader says about itself; -1 where it says nothing."""
    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(batches, "sampler", None) or getattr(loader, "sampler", None)
    if batches is not None and not hasattr(batches, "sampler"):
        sampler = batches  # a batch sampler that draws for itself
    found = dict.fromkeys(FACTS, -1)
    try:
        found["length"] = len(loader)
    except TypeError:
        found["length"] = -1  # an iterable without a length
    if isinstance(sampler, DistributedSampler) or hasattr(sampler, "num_replicas"):
        found["replicas"] = int(sampler.num_replicas)
        found["share"] = int(getattr(sampler, "rank", -1))
        found["seed"] = int(getattr(sampler, "seed", 0))
        found["epoch"] = int(getattr(sampler, "epoch", 0))
        found["shuffle"] = int(getattr(sampler, "shuffle", True))
    dataset = getattr(loader, "dataset", None)
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        found["samples"] = len(dataset)
        found["dataset"] = fingerprint(dataset)
    found["batches"] = int(getattr(batches, "batch_size", None) or -1)
    return found
