"""Invariant: one index of one data set is one sample, on whichever rank it is read."""

import copy
import random
import sys
from collections.abc import Callable

import torch
from torch.utils.data import IterableDataset

from .digests import digest_all, number
from .exchange import Exchange, GuardError, names
from .loaders import inner, leaves

TOLERANCE = 1e-3  # what other processors and libraries round otherwise
MOST = 1 << 18  # elements of a sample
GENERATORS = "Generator", "Random", "RandomState"
OWN = "rank", "seed"  # in the names of what a rank may draw by


def sample(loader) -> Callable[[], list] | None:
    """How to read one sample, twice the same; None if it cannot be done unseen.

    With workers it is not done: a data set may open its files in its first fetch, and
    must not do so before the workers are forked.
    """
    dataset = getattr(inner(loader), "dataset", None)
    if isinstance(dataset, IterableDataset) or getattr(inner(loader), "num_workers", 1):
        return None
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return None
    count = len(dataset)
    return lambda: [x for at in sorted({0, count // 2}) for x in _read(dataset, at)]


def _read(dataset, index: int) -> list[torch.Tensor]:
    """What is behind an index, as tensors; all generators start at one place."""
    before = random.getstate(), torch.get_rng_state()
    numpy = sys.modules.get("numpy")
    drawn = numpy and numpy.random.get_state()
    try:
        random.seed(0)
        torch.default_generator.manual_seed(0)
        if numpy:
            numpy.random.seed(0)
        return [_tensor(leaf) for leaf in leaves(_copied(dataset)[index])]
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])
        if numpy:
            numpy.random.set_state(drawn)


def _copied(thing, depth: int = 3):
    """A copy whose attributes can be set, with generators that draw alike."""
    if not hasattr(thing, "__dict__"):
        return thing
    found = copy.copy(thing)
    for key, value in vars(found).items():
        if type(value).__name__ in GENERATORS:
            vars(found)[key] = _alike(value)
        elif depth and hasattr(value, "__getitem__") and hasattr(value, "__dict__"):
            vars(found)[key] = _copied(value, depth - 1)
    return found


def _alike(generator):
    """One of its kind that draws the same on all ranks; it is left where it is."""
    if hasattr(generator, "bit_generator"):  # NumPy's newer ones cannot be seeded again
        return type(generator)(type(generator.bit_generator)(0))
    found = copy.deepcopy(generator)
    getattr(found, "manual_seed", found.seed)(0)
    return found


def _tensor(leaf) -> torch.Tensor:
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
    """Reads one sample of each data set on all ranks, and compares.

    Args:
        exchange: between the ranks, each of which takes a share of the data set.
    """

    def __init__(self, exchange: Exchange):
        self.exchange = exchange
        self.found: list[torch.Tensor] = []

    def look(self, loader) -> list[int]:
        """Numbers for samples, their shapes, and what a rank may draw by; or zeros."""
        self.found = []
        read = sample(loader)
        try:
            first, again = (read(), read()) if read else ([], [])
        except Exception:  # the data set's own, which the loader will meet
            return [0, 0, 0]
        sizes = [tuple(x.shape) for x in first]
        equal = digest_all(first) == digest_all(again)
        if not first or not equal or sum(x.numel() for x in first) > MOST:
            return [0, 0, 0]
        self.found = first
        dataset = inner(loader).dataset
        held = vars(dataset) if hasattr(dataset, "__dict__") else {}
        own = [
            f"{key}={value}"
            for key, value in sorted(held.items())
            if any(word in key.lower() for word in OWN)
        ]
        types = [x.dtype for x in first]
        return [digest_all(first), number(f"{sizes} {types}"), number(str(own))]

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Raise if one index is another sample on another rank."""
        digests, shapes, own = ([row[i] for row in rows] for i in range(3))
        if not all(digests) or len(set(digests)) == 1 or len(set(own)) > 1:
            return
        if len(set(shapes)) > 1:
            told = self.exchange.texts(str([tuple(x.shape) for x in self.found]))
            said = _said(self.exchange, told)
            raise GuardError(f"{where}: {OTHER.format('has the shapes ' + said)}")
        flat = torch.cat([x.flatten().double() for x in self.found])
        bits = self.exchange.bytes(where, flat.view(torch.uint8).flatten())
        values = torch.stack([x.view(torch.float64) for x in bits])
        scale = max(values.abs().max().item(), 1e-30)
        off = values.max(0).values - values.min(0).values
        if not off.max() > TOLERANCE * scale:
            return
        at = int(off.argmax())
        said = _said(self.exchange, [f"{v:.6g}" for v in values[:, at].tolist()])
        raise GuardError(f"{where}: {OTHER.format('holds ' + said)}")


OTHER = (
    "the same index of the data set is not the same sample on all ranks, drawn with "
    "equal random numbers: it {}. Each rank reads a share of one data set, so all "
    "must read, decode, number and normalise alike, in one order (sort what listdir "
    "gives): not by hash(), which is another one in each process, and not by a rank's "
    "own files, folders or statistics."
)


def _said(exchange: Exchange, values: list[str]) -> str:
    groups = exchange.split(values).items()
    return " and ".join(f"{value} on {names(ranks)}" for value, ranks in groups)
