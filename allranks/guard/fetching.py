"""Invariant: an index of a data set is the same sample on every rank."""

import copy
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import IterableDataset

from allranks.guard.configuration import words
from allranks.guard.datasets import held
from allranks.guard.digests import digest_all, number
from allranks.guard.exchange import Exchange, GuardError
from allranks.guard.loaders import inner, leaves
from allranks.guard.randomness import preserved

TOLERANCE = 1e-3  # relative; other processors and libraries round differently
MOST = 1 << 18  # elements of a sample
GENERATORS = "Generator", "Random", "RandomState"
OWN = {"rank", "seed"}  # words in the names of what a rank may draw by
OTHER = (
    "the same index of the data set is not the same sample on all ranks, drawn with "
    "equal random numbers: it {}. Each rank reads a share of one data set, so all "
    "must read, decode, number and normalise alike, in one order (sort what listdir "
    "gives): not by hash(), which is another one in each process, and not by a rank's "
    "own files, folders or statistics."
)


def reader(loader: Any) -> Callable[[], list[torch.Tensor]] | None:
    """Return a function that reads the same two samples; None if that may do harm.

    With workers it may: a data set may open its files in its first fetch, which must
    not happen before the workers are forked.
    """
    dataset = getattr(inner(loader), "dataset", None)
    if isinstance(dataset, IterableDataset) or getattr(inner(loader), "num_workers", 1):
        return None
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return None
    count = len(dataset)
    return lambda: [x for at in sorted({0, count // 2}) for x in _read(dataset, at)]


def _read(dataset: Any, index: int) -> list[torch.Tensor]:
    """Return a sample as tensors, read with all generators seeded with 0."""
    numpy = sys.modules.get("numpy")
    with preserved(torch.device("cpu")):
        random.seed(0)
        torch.default_generator.manual_seed(0)
        if numpy:
            numpy.random.seed(0)
        return [_tensor(leaf) for leaf in leaves(_copied(dataset)[index])]


def _copied(thing: Any, depth: int = 3) -> Any:
    """Copy an object, so that it can be changed, with generators seeded with 0."""
    if not hasattr(thing, "__dict__"):
        return thing
    found = copy.copy(thing)
    for key, value in vars(found).items():
        if type(value).__name__ in GENERATORS:
            vars(found)[key] = _alike(value)
        elif depth and hasattr(value, "__getitem__") and hasattr(value, "__dict__"):
            vars(found)[key] = _copied(value, depth - 1)
    return found


def _alike(generator: Any) -> Any:
    """Return a generator of the same kind that draws the same numbers on all ranks."""
    if hasattr(generator, "bit_generator"):  # NumPy's newer ones cannot be seeded again
        return type(generator)(type(generator.bit_generator)(0))
    found = copy.deepcopy(generator)
    getattr(found, "manual_seed", found.seed)(0)
    return found


def _tensor(leaf: Any) -> torch.Tensor:
    if torch.is_tensor(leaf):
        return leaf.detach().cpu()
    if isinstance(leaf, int | float):
        return torch.tensor(leaf)
    if isinstance(leaf, str | bytes):
        return torch.tensor(number(leaf))
    if hasattr(leaf, "tobytes"):  # an array, a number of NumPy's, an image
        return torch.frombuffer(bytearray(leaf.tobytes() + b" "), dtype=torch.uint8)
    raise TypeError(type(leaf).__name__)


class Fetched:
    """Reads two samples of each data set on all ranks, and compares them.

    Args:
        exchange: between the ranks, each of which takes a share of the data set.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.found: list[torch.Tensor] = []

    def look(self, loader: Any) -> list[int]:
        """Return numbers for the samples, their shapes, and what a rank may draw by.

        All three are 0 if there is nothing that can be compared.
        """
        self.found = []
        read = reader(loader)
        try:
            first, again = (read(), read()) if read else ([], [])
        except Exception:  # the data set raises it, and will raise it in the loader too
            return [0, 0, 0]
        sizes = [tuple(x.shape) for x in first]
        equal = digest_all(first) == digest_all(again)
        if not first or not equal or sum(x.numel() for x in first) > MOST:
            return [0, 0, 0]
        self.found = first
        own = [
            f"{key}={value}"
            for key, value in sorted(held(inner(loader).dataset).items())
            if not OWN.isdisjoint(words(key))
        ]
        types = [x.dtype for x in first]
        return [digest_all(first), number(f"{sizes} {types}"), number(str(own))]

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Raise if an index is not the same sample on all ranks."""
        digests, shapes, own = ([row[i] for row in rows] for i in range(3))
        if not all(digests) or len(set(digests)) == 1 or len(set(own)) > 1:
            return
        if len(set(shapes)) > 1:
            texts = self.exchange.texts(str([tuple(x.shape) for x in self.found]))
            said = f"has the shapes {self.exchange.by_ranks(texts, ' and ')}"
            raise GuardError(f"{where}: {OTHER.format(said)}")
        flat = torch.cat([x.flatten().double() for x in self.found])
        bits = self.exchange.bytes(where, flat.view(torch.uint8).flatten())
        values = torch.stack([x.view(torch.float64) for x in bits])
        scale = max(values.abs().max().item(), 1e-30)
        off = values.max(0).values - values.min(0).values
        if not off.max() > TOLERANCE * scale:
            return
        each = [f"{v:.6g}" for v in values[:, int(off.argmax())].tolist()]
        said = f"holds {self.exchange.by_ranks(each, ' and ')}"
        raise GuardError(f"{where}: {OTHER.format(said)}")
