"""Invariants of the data in an epoch: equal counts, disjoint shares, a new order.

``DataChecks`` judges an epoch before it, during it and at its end. It takes three
parts: ``Samplers`` for what the samplers tell, ``overlap`` for the samples that came,
and ``Orders`` for whether they came in the order of the epoch before.
"""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple
from weakref import ref

import torch.distributed as dist
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from allranks.guard.datasets import (
    Fetched,
    Sample,
    Tables,
    batch_rows,
    facts,
    inner,
    row_digests,
    sampler_of,
)
from allranks.guard.digests import number
from allranks.guard.exchange import Exchange, GuardError, names

TWICE = 'came twice on one rank: if the data set has equal ones, skip=("data",).'
ROWS = 4096  # samples of an epoch whose digests each rank keeps
EPOCHS = 3  # in which they are kept, since shares may overlap only after the first
STALE = (
    "the sampler's epoch is still {} on {}, so this epoch repeats the previous epoch's "
    "order. Call sampler.set_epoch(epoch) before it."
)
LENGTH = (
    "The ranks must make equally many steps: a rank that has no batch left leaves the "
    "others in a collective, or pairs with it another one."
)
SHARES = "Shares of one order are apart only if all ranks draw that order alike."
ORDER = (
    "Every rank must hold the same samples in the same order: sort what listdir or a "
    "set gives, and take no statistics of a rank's own part. If it is already cut by "
    "rank, it needs no DistributedSampler."
)
AGREED = (  # a loader's fact, what it means if it differs, and why that is wrong
    ("replicas", "the sampler's num_replicas differs", SHARES),
    ("samples", "samples in the data set", SHARES),
    ("seed", "the sampler's seed differs", SHARES),
    ("epoch", "the sampler's epoch differs", SHARES),
    ("shuffle", "the sampler's shuffle differs", SHARES),
    ("total", "the samples that the sampler deals out differ", SHARES),
    ("dataset", "the data sets or subsets are not the same; their digests", ORDER),
)
STREAM = (
    "Deal one order out by rank and worker: the same seed on all ranks for what is "
    "shuffled, then islice(order, rank * num_workers + worker, None, "
    "world_size * num_workers)."
)
DRAWN = "Seed the sampler's generator with seed + rank."
MAP = (
    "Use a DistributedSampler, on one order of the samples (sort what listdir or a "
    "set gives)."
)
HEAD = 256  # samples of an epoch whose order is kept
FEW = 8  # different samples; fewer may come in the same order by chance
RANDOM = RandomSampler, SubsetRandomSampler, WeightedRandomSampler
REPEATS = (
    "{} shuffles. Something keeps the first order: batches made once in __init__, or a "
    "generator seeded anew. Draw the order in __iter__; if it is meant, shuffle=False."
)
REPEATS_STREAM = (
    "{} has set_epoch(). Was it called, and does __iter__ use it? Persistent workers "
    "keep a copy that it does not reach: persistent_workers=False, or a shared tensor."
)


class Seen(NamedTuple):
    """What a rank has seen of an epoch so far, as a check sends it."""

    digest: int  # of its samples; 0 if they are not compared
    num_different: int
    num_batches: int  # since the last step
    full: int  # 1 if all samples are kept that a check compares one by one


class Ended(NamedTuple):
    """What a rank tells at the end of an epoch, before the digests of its samples."""

    num_batches: int
    times_read: int  # how often each sample came, if each worker read all of them
    repeated: int  # what ``Orders.repeated`` returned


class DataChecks:
    """Judges loaders and batches, also by what earlier epochs looked like.

    Args:
        exchange: between the ranks.
        shares: a number for each rank. Ranks with equal numbers need the same batches,
            as in tensor parallelism; all others need different ones. None if that is
            unknown.
        model: in which tables are looked for, too.
    """

    def __init__(
        self, exchange: Exchange, shares: list[int] | None, model: nn.Module
    ) -> None:
        self.exchange, self.shares = exchange, shares
        self.tables = Tables(exchange, model)
        self.samplers = Samplers(exchange, shares)
        self.fetched, self.orders = Fetched(exchange), Orders(exchange)
        self.num_shares = self.samplers.num_shares
        self.firsts = self.samplers.firsts  # places of ranks, one for each share
        self.one_model = self.samplers.one_model
        self.last: list[tuple[ref, list[int]]] = []  # samplers; order of their epoch
        self.proved = False  # a DistributedSampler deals the samples out
        self.drawn = False  # samples are drawn with replacement, so some come twice
        self.workers = -1  # of an iterable data set
        self.advice = MAP  # what to do if shares overlap
        self.samples: list[int] = []  # digests of this epoch's first ones
        self.keep = ROWS  # of how many
        self.num_epochs, self.loads = 0, True  # whether a DataLoader brings batches
        self.num_batches = 0  # since the last step

    def begin(self, where: str, loader: Iterable) -> dict[str, int]:
        """Check a loader before its first batch, and return its facts."""
        own, sampler = facts(loader), sampler_of(loader)
        order = [own[key] for key in ("epoch", "seed", "samples")]
        if own["shuffle"] == 1:
            # A sampler that is gone was replaced, and the new one may repeat its order.
            mine = [old for old in self.last if old[0]() in (None, sampler)]
            own["stale"] = int(any(old[1] == order for old in mine))
            self.last = [old for old in self.last if old not in mine]
            self.last += [(ref(sampler), order)]
        self.keep -= len(self.samples)  # these are left from an epoch that ended early
        self.samples, self.num_batches = [], 0
        self.tables.add_facts(own, loader)
        shares = own["replicas"] > 1 and self.tables.fresh
        sample = self.fetched.read(loader if shares else None)
        table = self.exchange.integers(where, [*sample, *own.values()])
        count = len(Sample._fields)
        samples = [Sample(*row[:count]) for row in table]
        rows = [dict(zip(own, row[count:], strict=True)) for row in table]
        codes, settings = ([r[key] for r in rows] for key in ("codes", "settings"))
        self.tables.judge(where, codes, settings)
        self.proved = self.samplers.proved(where, rows)
        self.drawn, self.workers = any(r["drawn"] == 1 for r in rows), own["workers"]
        self.advice = cure(self.drawn, streams=self.workers >= 0)
        self.orders.begin(loader)
        self.loads = isinstance(inner(loader), DataLoader)
        self.fetched.judge(where, samples)
        stale = [i for i, row in enumerate(rows) if row["stale"] == 1]
        if stale:
            who = names(self.exchange.ranks[i] for i in stale)
            epoch = rows[stale[0]]["epoch"]
            raise GuardError(f"{where}: {STALE.format(epoch, who)}")
        return own

    def vote(self, where: str, more: bool, done: int) -> None:
        """Raise if some ranks have another batch and others have not.

        It is called before each batch of a loader without a length.

        Args:
            where: what this place is called.
            more: whether this rank has another batch.
            done: how many batches it has had.
        """
        have = [bool(row[0]) for row in self.exchange.integers(where, [int(more)])]
        if any(have) and not all(have):
            out = names(self.exchange.ranks[i] for i, yes in enumerate(have) if not yes)
            raise GuardError(
                f"{where}: no batch is left on {out} after {done}; the others go on: "
                "they would wait for ever, or pair a step with another collective."
            )

    def global_batch(self, where: str, batch: Any, expected: int) -> None:
        """Raise unless a step takes the expected number of samples on all ranks."""
        counts = [row[0] for row in self.exchange.integers(where, [batch_rows(batch)])]
        if sum(counts) != expected:
            raise GuardError(
                f"{where}: a step takes {sum(counts)} samples ({counts} by rank), not "
                f"{expected}. batch_size is each rank's own: divide by the ranks."
            )

    def seen(self, batch: Any) -> None:
        """Keep digests of a batch, if it is among the first of the epoch."""
        self.num_batches += 1
        wants, more = self.orders.wants(), len(self.samples) < self.keep
        more = more and not self.proved and self.exchange.size > 1
        digests = row_digests(batch, self.loads) if more or wants else []
        self.samples += digests[: self.keep - len(self.samples)] if more else []
        if wants:
            self.orders.seen(digests)

    def numbers(self) -> list[int]:
        """Return what a check sends about the samples so far: a ``Seen``."""
        full = int(len(self.samples) >= self.keep > 0)
        if self.proved or not self.samples:
            return [*Seen(0, 0, self.num_batches, 0)]
        digest, num_different = number(str(self.samples)), len(set(self.samples))
        return [*Seen(digest, num_different, self.num_batches, full)]

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Compare the samples so far; only ranks of one share may have equal ones."""
        seen = [Seen(*row) for row in rows]
        self._windows(where, [one.num_batches for one in seen])
        digests, ranks = [one.digest for one in seen], self.exchange.ranks
        if self.exchange.size == 1 or not self.num_shares or not all(digests):
            return
        for share in dict.fromkeys(self.shares):
            inside = [i for i, own in enumerate(self.shares) if own == share]
            first = inside[0]
            other = next((i for i in inside if digests[i] != digests[first]), None)
            if other is not None:
                raise GuardError(
                    f"{where}: rank {ranks[first]} and rank {ranks[other]} got "
                    "different batches. Ranks that share a tensor-parallel model need "
                    "the same. If these do not, pass the axis of the data: "
                    'group=mesh["data"].get_group().'
                )
        apart = [digests[i] for i in self.firsts]  # these should all be different
        twice = next((n for n in apart if apart.count(n) > 1), None)
        # Two ranks may have the same one or two samples by chance.
        if twice is not None and min(one.num_different for one in seen) >= 4:
            alike = [i for i, digest in enumerate(digests) if digest == twice]
            raise GuardError(
                f"{where}: {names(ranks[i] for i in alike)} got exactly the same "
                f"samples so far ({seen[alike[0]].num_different} different ones). "
                f"{self.advice}"
            )
        if all(one.full for one in seen):
            samples = self.exchange.integers(f"{where}: samples", self.samples)
            self._disjoint(where, samples)
            self.samples, self.keep = [], 0

    def _windows(self, where: str, num_batches: list[int]) -> None:
        """Raise unless a step takes equally many batches of ``epoch`` on all ranks."""
        if all(num_batches) and len(set(num_batches)) > 1:
            raise GuardError(
                f"{where}: batches since the last step: "
                f"{self.exchange.by_ranks(num_batches)}. The ranks must step after "
                "equally many: one accumulation window, and a batch that is skipped is "
                "skipped on every rank."
            )

    def end(self, where: str, batches: int) -> None:
        """Check an epoch at its end: equal counts, and no sample on two ranks.

        Args:
            where: what this place is called.
            batches: how many this rank has had.
        """
        times = times_read(self.samples, self.workers)
        own = Ended(batches, times, self.orders.repeated())
        table = self.exchange.integers(where, [*own, *self.samples])
        count = len(Ended._fields)
        ended, samples = [Ended(*r[:count]) for r in table], [r[count:] for r in table]
        num_batches = [one.num_batches for one in ended]
        self.samplers.same(where, num_batches, "batches made", LENGTH)
        self.num_epochs += 1
        self.samples, self.keep = [], ROWS if self.num_epochs < EPOCHS else 0
        times = max(one.times_read for one in ended)
        if times:
            raise GuardError(
                f"{where}: each sample came {times} times: each of the loader's "
                "workers reads the whole stream. Let __iter__ take every n-th sample "
                "by get_worker_info()."
            )
        self._disjoint(where, samples)
        self.orders.judge(where, [one.repeated for one in ended])

    def _disjoint(self, where: str, samples: list[list[int]]) -> None:
        """Raise if samples were on two ranks, unless the data set has them twice.

        Args:
            where: what this place is called.
            samples: digests of each rank's.
        """
        if self.proved or self.drawn or self.num_shares < 2:
            return
        kept = [samples[i] for i in self.firsts]  # ranks of one share have the same
        common = overlap(kept, self.exchange.size)
        if common is None:
            return
        twice, pair = common
        who = names(self.exchange.ranks[self.firsts[i]] for i in pair)
        inside = sum(len(own) - len(set(own)) for own in samples)
        own = f" {inside} {TWICE}" if inside else ""
        raise GuardError(
            f"{where}: {twice} samples were on more than one rank, most on {who} "
            f"({len(set().union(*kept))} different ones in {sum(map(len, kept))}). The "
            f"ranks' shares must be apart. {self.advice}{own}"
        )


class Samplers:
    """Judges the facts that ``loaders`` found on all ranks.

    Args:
        exchange: between the ranks.
        shares: see ``DataChecks``.
    """

    def __init__(self, exchange: Exchange, shares: list[int] | None) -> None:
        self.exchange, self.shares = exchange, shares
        self.num_shares = len(set(shares or ()))  # 0 if it is unknown
        self.one_model = self.num_shares == 1 < exchange.size
        self.firsts = [i for i, n in enumerate(shares or ()) if n not in shares[:i]]

    def same(self, where: str, values: list[int], what: str, why: str) -> None:
        """Raise if a number is not the same on all ranks."""
        if len(set(values)) > 1:
            said = self.exchange.by_ranks(values)
            raise GuardError(f"{where}: {what}: {said}. {why}")

    def proved(self, where: str, rows: list[dict[str, int]]) -> bool:
        """Tell whether the samplers prove that shares are disjoint.

        If they do, the samples themselves need not be compared.

        Raises:
            GuardError: if the samplers deal the samples out wrongly.
        """
        lengths = [row["length"] for row in rows]
        self.same(where, lengths, "batches in this epoch", LENGTH)
        if all(row["replicas"] >= 0 for row in rows):
            return self._sampler(where, rows)
        if self.num_shares > 1:
            self._no_sampler(where, rows)
        return False

    def _sampler(self, where: str, rows: list[dict[str, int]]) -> bool:
        """Tell whether samplers that deal to ranks prove it; raise if they deal badly.

        What they say is worth a proof only if the data sets are known to be the same.
        """
        size = self.exchange.size
        for key, what, why in AGREED:
            self.same(where, [row[key] for row in rows], what, why)
        if not self.num_shares:
            return False
        taken = [row["share"] for row in rows]  # (W,): which share of how many
        for share in dict.fromkeys(self.shares):
            inside = [i for i, own in enumerate(self.shares) if own == share]
            if len({taken[i] for i in inside}) > 1:
                who = names(self.exchange.ranks[i] for i in inside)
                raise GuardError(
                    f"{where}: {who} of one tensor-parallel model take different "
                    f"shares, {[taken[i] for i in inside]}: they need the same batch. "
                    "Give the sampler the size of the data axis, and the rank in it."
                )
        if self.one_model:
            return False
        # Fewer shares than needed: some samples come twice. More: some never come.
        apart, replicas = {taken[i] for i in self.firsts}, rows[0]["replicas"]
        if replicas < self.num_shares or len(apart) < self.num_shares:
            raise GuardError(
                f"{where}: the sampler makes {replicas} shares, and the "
                f"{size} ranks take the shares {taken}: some samples are trained on "
                "twice. Build it with this group's size and rank."
            )
        if replicas > self.num_shares and size > 1:
            raise GuardError(f"{where}: {self._too_many(replicas, taken)}")
        return all(row["known"] == 1 for row in rows)

    def _too_many(self, replicas: int, taken: list[int]) -> str:
        said = (
            f"the sampler deals to {replicas}, and the model's {self.exchange.size} "
            f"ranks take the shares {taken}: they never see the others. "
        )
        world = dist.get_world_size() if dist.is_initialized() else 1
        if world > self.exchange.size:
            return said + (
                f"The model is averaged over {names(self.exchange.ranks)} of {world} "
                "only: give DDP the group of all ranks that train it, or the sampler "
                "this group's size, and the rank in it."
            )
        return said + "Build it with this group's size and rank."

    def _no_sampler(self, where: str, rows: list[dict[str, int]]) -> None:
        prints = [row["dataset"] for row in rows]
        whole = all(row["whole"] == row["known"] == 1 for row in rows)
        if whole and prints[0] not in (0, -1) and len(set(prints)) == 1:
            raise GuardError(
                f"{where}: each of the {self.exchange.size} ranks goes through all "
                f"{rows[0]['samples']} samples: the loader has no DistributedSampler."
            )


def cure(drawn: bool, streams: bool) -> str:
    """Say how to give ranks disjoint samples: drawn, streamed or numbered ones."""
    if drawn:
        return DRAWN
    return STREAM if streams else MAP


def overlap(kept: list[list[int]], size: int) -> tuple[int, tuple[int, int]] | None:
    """Count samples that were on two ranks, and name the pair that shares most.

    If the data set has a sample twice, both copies are about as often on one rank as on
    two. So pairs of equal samples are counted within ranks and between ranks, and there
    must be more between them than chance allows, given those within.

    Args:
        kept: digests of each rank's samples.
        size: number of ranks; padding may put as many samples on two ranks.

    Returns:
        The count, and the places of the two ranks in ``kept``; None if there are few.
    """
    counts = [Counter(row) for row in kept]
    union = set().union(*counts)
    twice = sum(map(len, counts)) - len(union)
    if twice <= max(size, 0.1 * len(union)):
        return None
    inside = any(len(count) < len(row) for count, row in zip(counts, kept, strict=True))
    follow = [list(itertools.pairwise(row)) for row in kept]  # overlaps come in runs
    if inside and not (_more(kept) or _more(follow)):
        return None
    pairs = itertools.combinations(range(len(kept)), 2)
    common = {(i, j): len(counts[i].keys() & counts[j].keys()) for i, j in pairs}
    return twice, max(common, key=common.get)


def _more(kept: list[list[Hashable]]) -> bool:
    """Tell whether more pairs are equal between ranks than those within explain."""
    counts, rows = [Counter(row) for row in kept], sum(map(len, kept))
    within = sum(n * (n - 1) // 2 for count in counts for n in count.values())
    every = sum(n * (n - 1) // 2 for n in sum(counts, Counter()).values())
    between = every - within
    chances = sum(len(row) * (len(row) - 1) // 2 for row in kept)
    ratio = (rows * (rows - 1) // 2 - chances) / max(chances, 1)
    spread = (between + ratio * ratio * within) ** 0.5
    return between - ratio * within > max(2.5 * spread, 0.1 * rows / len(kept))


def times_read(rows: list[int], workers: int) -> int:
    """Return how often each sample came, if each worker read all of them; else 0."""
    counts = Counter(rows).values()
    if workers < 2 or len(counts) < 4:
        return 0
    each = [count for count in counts if count % workers == 0]
    return workers if len(each) >= 0.9 * len(counts) else 0


class Orders:
    """Keeps the first samples of an epoch, to compare them with those of the next.

    It does so only if something in the loader declares that it shuffles, because a
    fixed order may be on purpose.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.last: list[tuple[ref, list[int]]] = []  # what shuffles; its last order
        self.rows: list[int] | None = None
        self.why, self.key, self.strict = "", None, False

    def begin(self, loader: Iterable) -> None:
        """Begin an epoch; if the last one ended early, it is not compared."""
        self.why, self.key, self.strict = declared(loader)
        self.rows = [] if self.why else None

    def wants(self) -> bool:
        """Tell whether to show it more samples."""
        return self.rows is not None and len(self.rows) < HEAD

    def seen(self, rows: list[int]) -> None:
        """Take digests of samples, in their order."""
        self.rows += rows[: HEAD - len(self.rows)]

    def repeated(self) -> int:
        """Return 1 if this epoch repeated an order, 2 if that is surely wrong, or 0."""
        rows, self.rows = self.rows, None
        if rows is None:
            return 0
        # A sampler that is gone was replaced, and the new one may repeat its order.
        mine = [old for old in self.last if old[0]() in (None, self.key)]
        self.last = [old for old in self.last if old not in mine]
        self.last.append((ref(self.key), rows))
        if len(set(rows)) < FEW or all(old[1] != rows for old in mine):
            return 0
        return 2 if self.strict else 1

    def judge(self, where: str, repeated: list[int]) -> None:
        """Raise, or warn, if ranks had the order of the epoch before."""
        if not any(repeated):
            return
        ranks = zip(self.exchange.ranks, repeated, strict=True)
        who = names(rank for rank, bad in ranks if bad)
        said = (
            f"{where}: the samples came in the order of the epoch before on {who}, "
            f"though {self.why}"
        )
        if 2 in repeated:
            raise GuardError(said)
        self.exchange.warn(said)


def declared(loader: Any) -> tuple[str, Any, bool]:
    """Return what declares that a loader shuffles.

    Returns:
        Why it should shuffle ("" if nothing says so), the object that declares it, and
        whether a repeated order is surely wrong.
    """
    dataset, sampler = getattr(loader, "dataset", None), sampler_of(loader)
    batches = getattr(loader, "batch_sampler", None)
    nothing = "", None, False
    if isinstance(dataset, IterableDataset):
        if not hasattr(dataset, "set_epoch") or _plain(dataset):
            return nothing
        strict = bool(getattr(loader, "persistent_workers", False))
        return REPEATS_STREAM.format(type(dataset).__name__), dataset, strict
    chain = [thing for thing in (batches, sampler) if thing is not None]
    if any(_plain(thing) for thing in chain):
        return nothing
    for thing in chain:
        if hasattr(thing, "set_epoch") or isinstance(thing, RANDOM):
            return REPEATS.format(type(thing).__name__), thing, True
    return nothing


def _plain(thing: Any) -> bool:
    """Tell whether an object declares that it does not shuffle."""
    words = ("shuffle", "shuffling", "_shuffle", "_shuffling")
    return any(not getattr(thing, word, True) for word in words)
