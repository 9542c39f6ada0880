"""Invariant: what shuffles gives another order in each epoch."""

from weakref import ref

from torch.utils.data import (
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .exchange import Exchange, GuardError, names
from .loaders import sampler_of

HEAD = 256  # samples of an epoch whose order is kept
FEW = 8  # different samples; fewer may come in one order by chance
RANDOM = RandomSampler, SubsetRandomSampler, WeightedRandomSampler
SAMPLER = (
    "{} shuffles. Something keeps the first order: batches made once in __init__, or a "
    "generator seeded anew. Draw the order in __iter__; if it is meant, shuffle=False."
)
STREAM = (
    "{} has set_epoch(). Was it called, and does __iter__ use it? Persistent workers "
    "keep a copy that it does not reach: persistent_workers=False, or a shared tensor."
)


class Orders:
    """Keeps the first samples of an epoch, to compare them with the next one's.

    Only of loaders in which something says that it shuffles: a sequence that is meant
    is no fault.
    """

    def __init__(self, exchange: Exchange, tell):
        self.exchange, self.tell = exchange, tell
        self.last: list = []  # what chooses the samples, and their order
        self.rows: list[int] | None = None
        self.why, self.key, self.strict = "", None, False

    def begin(self, loader) -> None:
        """Begin an epoch; one that was left early is not compared."""
        self.why, self.key, self.strict = declared(loader)
        self.rows = [] if self.why else None

    def wants(self) -> bool:
        """Whether more samples are to be seen."""
        return self.rows is not None and len(self.rows) < HEAD

    def seen(self, rows: list[int]) -> None:
        """Take digests of samples in their order."""
        self.rows += rows[: HEAD - len(self.rows)]

    def repeated(self) -> int:
        """1 if this epoch had the order of the one before, 2 if it surely is wrong."""
        rows, self.rows = self.rows, None
        if rows is None:
            return 0
        # A sampler that is gone was replaced: a new one may repeat its order.
        mine = [old for old in self.last if old[0]() in (None, self.key)]
        self.last = [old for old in self.last if old not in mine]
        self.last.append((ref(self.key), rows))
        alike = len(set(rows)) >= FEW and any(old[1] == rows for old in mine)
        return (1 + self.strict) * alike

    def judge(self, where: str, found: list[int]) -> None:
        """Raise, or warn, if ranks had the order of the epoch before."""
        if not any(found):
            return
        who = names(r for r, bad in zip(self.exchange.ranks, found, strict=True) if bad)
        said = (
            f"{where}: the samples came in the order of the epoch before on {who}, "
            f"though {self.why}"
        )
        if 2 in found:
            raise GuardError(said)
        self.tell(said)


def declared(loader) -> tuple[str, object, bool]:
    """What says that a loader shuffles: why, the object, and whether it is strict."""
    dataset, sampler = getattr(loader, "dataset", None), sampler_of(loader)
    batches = getattr(loader, "batch_sampler", None)
    if isinstance(dataset, IterableDataset):
        if not hasattr(dataset, "set_epoch") or _plain(dataset):
            return "", None, False
        strict = bool(getattr(loader, "persistent_workers", False))
        return STREAM.format(type(dataset).__name__), dataset, strict
    chain = [thing for thing in (batches, sampler) if thing is not None]
    if any(_plain(thing) for thing in chain):
        return "", None, False
    for thing in chain:
        if hasattr(thing, "set_epoch") or isinstance(thing, RANDOM):
            return SAMPLER.format(type(thing).__name__), thing, True
    return "", None, False


def _plain(thing) -> bool:
    """Whether it says that it does not shuffle."""
    words = ("shuffle", "shuffling", "_shuffle", "_shuffling")
    return any(not getattr(thing, word, True) for word in words)
