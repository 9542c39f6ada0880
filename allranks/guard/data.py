"""Invariants of the data in an epoch: equal counts, disjoint shares, a new order."""

from collections.abc import Iterable
from typing import Any
from weakref import ref

from torch import nn
from torch.utils.data import DataLoader

from allranks.guard import samplers
from allranks.guard.datasets import Tables
from allranks.guard.digests import number
from allranks.guard.exchange import Exchange, GuardError, names
from allranks.guard.fetching import Fetched
from allranks.guard.loaders import batch_rows, facts, inner, row_digests, sampler_of
from allranks.guard.samplers import Orders, Samplers

TWICE = 'came twice on one rank: if the data set has equal ones, skip=("data",).'
ROWS = 4096  # samples of an epoch whose digests each rank keeps
EPOCHS = 3  # in which they are kept, since shares may overlap only after the first
STALE = (
    "the sampler's epoch is still {} on {}, so this epoch has the last one's order. "
    "Call sampler.set_epoch(epoch) before it."
)


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
        self.advice = samplers.MAP  # what to do if shares overlap
        self.rows: list[int] = []
        self.ended, self.loads = 0, True  # epochs; whether a DataLoader brings batches
        self.keep, self.taken = ROWS, 0  # rows; batches since the last step

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
        self.keep -= len(self.rows)  # these are left from an epoch that ended early
        self.rows, self.taken = [], 0
        self.tables.look(own, loader)
        shares = own["replicas"] > 1 and self.tables.fresh
        fetched = self.fetched.look(loader if shares else None)
        table = self.exchange.integers(where, [*fetched, *own.values()])
        fetched, table = [row[:3] for row in table], [row[3:] for row in table]
        rows = [dict(zip(own, row, strict=True)) for row in table]
        codes, settings = ([r[key] for r in rows] for key in ("codes", "settings"))
        self.tables.judge(where, codes, settings)
        self.proved = self.samplers.proved(where, rows)
        self.drawn, self.workers = any(r["drawn"] == 1 for r in rows), own["workers"]
        self.advice = samplers.cure(self.drawn, streams=self.workers >= 0)
        self.orders.begin(loader)
        self.loads = isinstance(inner(loader), DataLoader)
        self.fetched.judge(where, fetched)
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
        self.taken += 1
        wants, more = self.orders.wants(), len(self.rows) < self.keep
        more = more and not self.proved and self.exchange.size > 1
        found = row_digests(batch, self.loads) if more or wants else []
        self.rows += found[: self.keep - len(self.rows)] if more else []
        if wants:
            self.orders.seen(found)

    def numbers(self) -> list[int]:
        """Return what a check sends: one number for the samples so far, and counts."""
        full = int(len(self.rows) >= self.keep > 0)
        if self.proved or not self.rows:
            return [0, 0, self.taken, 0]
        return [number(str(self.rows)), len(set(self.rows)), self.taken, full]

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Compare the samples so far; only ranks of one share may have equal ones."""
        self._windows(where, [row[2] for row in rows])
        seen = [row[0] for row in rows]
        if self.exchange.size == 1 or not self.num_shares or not all(seen):
            return
        for share in dict.fromkeys(self.shares):
            inside = [i for i, own in enumerate(self.shares) if own == share]
            other = next((i for i in inside if seen[i] != seen[inside[0]]), None)
            if other is not None:
                one, two = self.exchange.ranks[inside[0]], self.exchange.ranks[other]
                raise GuardError(
                    f"{where}: rank {one} and rank {two} got different batches. Ranks "
                    "that share a tensor-parallel model need the same. If these do "
                    'not, pass the axis of the data: group=mesh["data"].get_group().'
                )
        apart = [seen[i] for i in self.firsts]  # these should all be different
        twice = next((n for n in apart if apart.count(n) > 1), None)
        if twice is not None and min(row[1] for row in rows) >= 4:
            alike = [i for i, own in enumerate(seen) if own == twice]
            raise GuardError(
                f"{where}: {names(self.exchange.ranks[i] for i in alike)} got exactly "
                f"the same samples so far ({rows[alike[0]][1]} different ones). "
                f"{self.advice}"
            )
        if all(row[3] for row in rows):
            own = [0, len(set(self.rows)), len(self.rows), *self.rows]
            self._disjoint(where, self.exchange.integers(f"{where}: samples", own))
            self.rows, self.keep = [], 0

    def _windows(self, where: str, taken: list[int]) -> None:
        """Raise unless a step takes equally many batches of ``epoch`` on all ranks."""
        if all(taken) and len(set(taken)) > 1:
            raise GuardError(
                f"{where}: batches since the last step: "
                f"{self.exchange.by_ranks(taken)}. The ranks must step after equally "
                "many: one accumulation window, and a batch that is skipped is skipped "
                "on every rank."
            )

    def end(self, where: str, batches: int) -> None:
        """Check an epoch at its end: equal counts, and no sample on two ranks.

        Args:
            where: what this place is called.
            batches: how many this rank has had.
        """
        times = samplers.times_read(self.rows, self.workers)
        own = [batches, len(set(self.rows)), len(self.rows), *self.rows, times]
        table = self.exchange.integers(where, [*own, self.orders.repeated()])
        orders, times = [row.pop() for row in table], [row.pop() for row in table]
        self.samplers.same(
            where, [row[0] for row in table], "batches made", samplers.LENGTH
        )
        self.ended += 1
        self.rows, self.keep = [], ROWS if self.ended < EPOCHS else 0
        if any(times):
            raise GuardError(
                f"{where}: each sample came {max(times)} times: each of the loader's "
                "workers reads the whole stream. Let __iter__ take every n-th sample "
                "by get_worker_info()."
            )
        self._disjoint(where, table)
        self.orders.judge(where, orders)

    def _disjoint(self, where: str, table: list[list[int]]) -> None:
        """Raise if samples were on two ranks, unless the data set has them twice.

        Args:
            where: what this place is called.
            table: a row for each rank, with the number of batches, of different samples
                and of all samples, and then the samples' digests.
        """
        if self.proved or self.drawn or self.num_shares < 2:
            return
        kept = [table[i][3:] for i in self.firsts]
        found = samplers.shared(kept, self.exchange.size)
        if found is None:
            return
        twice, pair = found
        who = names(self.exchange.ranks[self.firsts[i]] for i in pair)
        inside = sum(row[2] - row[1] for row in table)
        own = f" {inside} {TWICE}" if inside else ""
        raise GuardError(
            f"{where}: {twice} samples were on more than one rank, most on {who} "
            f"({len(set().union(*kept))} different ones in {sum(map(len, kept))}). The "
            f"ranks' shares must be apart. {self.advice}{own}"
        )
