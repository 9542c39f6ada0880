"""Invariants of the data: equal counts, disjoint shares, a new order each epoch."""

from weakref import ref

from torch.utils.data import DataLoader

from . import disjoint
from .codes import Codes
from .digests import number
from .exchange import Exchange, GuardError, names
from .fetched import Fetched
from .loaders import batch_rows, facts, inner, row_digests, sampler_of
from .orders import Orders
from .samplers import LENGTH, Samplers

TWICE = 'came twice on one rank: if the data set has equal ones, skip=("data",).'
ROWS = 4096  # samples of an epoch whose digests are kept, on each rank
EPOCHS = 3  # of which they are: shares that part later are seen in the second
STALE = (
    "the sampler's epoch is still {} on {}, so this epoch has the last one's order. "
    "Call sampler.set_epoch(epoch) before it."
)


class DataChecks:
    """Judges loaders and batches; knows what the epochs before looked like.

    Args:
        shares: a number for each rank; ranks with equal ones need the same batches, as
            tensor parallelism does, and others need others. None: nobody knows.
    """

    def __init__(self, exchange: Exchange, shares: list[int] | None, model=None):
        self.exchange, self.shares = exchange, shares
        self.codes = Codes(exchange, model)
        self.samplers = Samplers(exchange, shares)
        self.teams, self.heads = self.samplers.teams, self.samplers.heads
        self.shared = self.samplers.shared
        self.last: list = []  # samplers, and the order of their last epoch
        self.proved = False  # a DistributedSampler deals the samples out
        self.drawn = False  # samples are drawn with replacement: some meet twice
        self.workers = -1  # of an iterable data set
        self.deal = disjoint.MAP  # what to do if shares are not apart
        self.fetched = Fetched(exchange)
        self.orders = Orders(exchange, lambda said: self.codes.tell(said))
        self.rows: list[int] = []
        self.ended, self.loads = 0, True  # epochs; whether a DataLoader brings batches
        self.keep, self.taken = ROWS, 0  # rows; batches since the last step

    def begin(self, where: str, loader) -> dict:
        """Check the loader before its first batch; return its facts."""
        own, sampler = facts(loader), sampler_of(loader)
        order = [own[key] for key in ("epoch", "seed", "samples")]
        if own["shuffle"] == 1:
            # A sampler that is gone was replaced: a new one may repeat its order.
            mine = [old for old in self.last if old[0]() in (None, sampler)]
            own["stale"] = int(any(old[1] == order for old in mine))
            self.last = [old for old in self.last if old not in mine]
            self.last += [(ref(sampler), order)]
        self.keep -= len(self.rows)  # of an epoch that was left early
        self.rows, self.taken = [], 0
        self.codes.look(own, loader)
        shares = own["replicas"] > 1 and self.codes.fresh
        samples = self.fetched.look(loader if shares else None)
        table = self.exchange.integers(where, [*samples, *own.values()])
        samples, table = [row[:3] for row in table], [row[3:] for row in table]
        rows = [dict(zip(own, row, strict=True)) for row in table]
        codes, settings = ([r[key] for r in rows] for key in ("codes", "settings"))
        self.codes.judge(where, codes, settings)
        self.proved = self.samplers.proved(where, rows)
        self.drawn, self.workers = any(r["drawn"] == 1 for r in rows), own["workers"]
        self.deal = disjoint.cure(self.drawn, streams=self.workers >= 0)
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
        """Before a batch of unknown number: all ranks have it, or none."""
        have = [bool(row[0]) for row in self.exchange.integers(where, [int(more)])]
        if any(have) and not all(have):
            out = names(self.exchange.ranks[i] for i, yes in enumerate(have) if not yes)
            raise GuardError(
                f"{where}: no batch is left on {out} after {done}; the others go on: "
                "they would wait for ever, or pair a step with another collective."
            )

    def global_batch(self, where: str, batch, expected: int) -> None:
        """Check how many samples a step takes on all ranks."""
        counts = [row[0] for row in self.exchange.integers(where, [batch_rows(batch)])]
        if sum(counts) != expected:
            raise GuardError(
                f"{where}: a step takes {sum(counts)} samples ({counts} by rank), not "
                f"{expected}. batch_size is each rank's own: divide by the ranks."
            )

    def seen(self, batch) -> None:
        """Keep digests of the first samples."""
        self.taken += 1
        wants, more = self.orders.wants(), len(self.rows) < self.keep
        more = more and not self.proved and self.exchange.size > 1
        found = row_digests(batch, self.loads) if more or wants else []
        self.rows += found[: self.keep - len(self.rows)] if more else []
        if wants:
            self.orders.seen(found)

    def numbers(self) -> list[int]:
        """What goes round at a check: the samples so far, as one number."""
        full = int(len(self.rows) >= self.keep > 0)
        if self.proved or not self.rows:
            return [0, 0, self.taken, 0]
        return [number(str(self.rows)), len(set(self.rows)), self.taken, full]

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Compare the samples so far: equal on two ranks is wrong (on TP: needed)."""
        self._windows(where, [row[2] for row in rows])
        if self.exchange.size == 1 or not self.teams or any(not r[0] for r in rows):
            return
        seen = [row[0] for row in rows]
        for team in dict.fromkeys(self.shares):
            inside = [i for i, own in enumerate(self.shares) if own == team]
            other = next((i for i in inside if seen[i] != seen[inside[0]]), None)
            if other is not None:
                one, two = self.exchange.ranks[inside[0]], self.exchange.ranks[other]
                raise GuardError(
                    f"{where}: rank {one} and rank {two} got different batches. Ranks "
                    "that share a tensor-parallel model need the same. If these do "
                    'not, pass the axis of the data: group=mesh["data"].get_group().'
                )
        heads = [seen[i] for i in self.heads]
        twice = next((n for n in heads if heads.count(n) > 1), None)
        if twice is not None and min(row[1] for row in rows) >= 4:
            alike = [i for i, own in enumerate(seen) if own == twice]
            raise GuardError(
                f"{where}: {names(self.exchange.ranks[i] for i in alike)} got exactly "
                f"the same samples so far ({rows[alike[0]][1]} different ones). "
                f"{self.deal}"
            )
        if all(row[3] for row in rows):
            own = [0, len(set(self.rows)), len(self.rows), *self.rows]
            self._disjoint(where, self.exchange.integers(f"{where}: samples", own))
            self.rows, self.keep = [], 0

    def _windows(self, where: str, taken: list[int]) -> None:
        """Equally many batches make a step, if ``epoch`` yields them."""
        if all(taken) and len(set(taken)) > 1:
            groups = self.exchange.split(taken).items()
            said = ", ".join(f"{n} on {names(ranks)}" for n, ranks in groups)
            raise GuardError(
                f"{where}: batches since the last step: {said}. The ranks must step "
                "after equally many: one accumulation window, and a batch that is "
                "skipped is skipped on every rank."
            )

    def end(self, where: str, batches: int) -> None:
        """At the end of an epoch: equal counts, and no sample on two ranks."""
        own = [
            batches,
            len(set(self.rows)),
            len(self.rows),
            *self.rows,
            disjoint.whole(self.rows, self.workers),
        ]
        table = self.exchange.integers(where, [*own, self.orders.repeated()])
        orders, whole = [row.pop() for row in table], [row.pop() for row in table]
        self.samplers.same(
            where, [{"n": r[0]} for r in table], "n", "batches made", LENGTH
        )
        self.ended += 1
        self.rows, self.keep = [], ROWS * (self.ended < EPOCHS)
        if any(whole):
            raise GuardError(
                f"{where}: each sample came {max(whole)} times: each of the loader's "
                "workers reads the whole stream. Let __iter__ take every n-th sample "
                "by get_worker_info()."
            )
        self._disjoint(where, table)
        self.orders.judge(where, orders)

    def _disjoint(self, where: str, table: list) -> None:
        if self.proved or self.drawn or self.teams < 2:
            return
        kept = [table[i][3:] for i in self.heads]
        found = disjoint.shared(kept, self.exchange.size)
        if found is None:
            return
        twice, pair = found
        who = names(self.exchange.ranks[self.heads[i]] for i in pair)
        inside = sum(row[2] - row[1] for row in table)
        own = f" {inside} {TWICE}" if inside else ""
        raise GuardError(
            f"{where}: {twice} samples were on more than one rank, most on {who} "
            f"({len(set().union(*kept))} different ones in {sum(map(len, kept))}). The "
            f"ranks' shares must be apart. {self.deal}{own}"
        )
