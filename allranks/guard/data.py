"""Invariants of the data: equal counts, disjoint shares, a new order each epoch."""

import itertools
from weakref import ref

from .digests import number
from .exchange import Exchange, GuardError, names
from .loaders import batch_rows, facts, row_digests, sampler_of

ROWS = 4096  # samples of the first epoch whose digests are kept, on each rank


class DataChecks:
    """Judges loaders and batches; knows what the epochs before looked like.

    Args:
        shares: a number for each rank; ranks with equal ones need the same batches, as
            tensor parallelism does, and others need others. None: nobody knows.
    """

    def __init__(self, exchange: Exchange, shares: list[int] | None):
        self.exchange, self.shares = exchange, shares
        self.teams = len(set(shares or ()))  # 0: nothing is known
        self.shared = self.teams == 1 < exchange.size
        self.heads = [i for i, n in enumerate(shares or ()) if n not in shares[:i]]
        self.last: list = []  # samplers, and the order of their last epoch
        self.proved = False  # a DistributedSampler deals the samples out
        self.rows: list[int] = []
        self.keep = ROWS

    def begin(self, where: str, loader) -> dict:
        """Check the loader before its first batch; return its facts."""
        own, sampler = facts(loader), sampler_of(loader)
        order = [own[key] for key in ("epoch", "seed", "samples")]
        if own["shuffle"] == 1:
            # A sampler that is gone was replaced: a new one may repeat its order.
            mine = [old for old in self.last if old[0]() in (None, sampler)]
            own["stale"] = int(any(old[1] == order for old in mine))
            self.last = [old for old in self.last if old not in mine]
            self.last.append((ref(sampler), order))
        self.keep -= len(self.rows)  # of an epoch that was left early
        self.rows = []
        table = self.exchange.integers(where, list(own.values()))
        rows = [dict(zip(own, row, strict=True)) for row in table]
        self.proved = False
        self._same(where, rows, "length", "batches in this epoch", LENGTH)
        if all(row["replicas"] >= 0 for row in rows):
            self._sampler(where, rows)
        elif self.teams > 1:
            self._no_sampler(where, rows)
        stale = [i for i, row in enumerate(rows) if row["stale"] == 1]
        if stale:
            who = names(self.exchange.ranks[i] for i in stale)
            raise GuardError(
                f"{where}: the sampler's epoch is still {rows[stale[0]]['epoch']} on "
                f"{who}, so this epoch has the last one's order. Call "
                "sampler.set_epoch(epoch) before it."
            )
        return own

    def _same(self, where: str, rows: list, key: str, what: str, why: str) -> None:
        values = [row[key] for row in rows]
        if len(set(values)) == 1:
            return
        groups = self.exchange.split(values).items()
        said = ", ".join(f"{value} on {names(ranks)}" for value, ranks in groups)
        raise GuardError(f"{where}: {what}: {said}. {why}")

    def _sampler(self, where: str, rows: list[dict]) -> None:
        size = self.exchange.size
        for key, what in (
            ("replicas", "the sampler's num_replicas differs"),
            ("samples", "samples in the data set"),
            ("seed", "the sampler's seed differs"),
            ("epoch", "the sampler's epoch differs"),
            ("shuffle", "the sampler's shuffle differs"),
            (
                "dataset",
                "the data sets or subsets are not the same; their digests",
            ),
        ):
            self._same(where, rows, key, what, SHARES)
        if not self.teams:
            return
        taken = [row["share"] for row in rows]
        for team in dict.fromkeys(self.shares):
            inside = [i for i, own in enumerate(self.shares) if own == team]
            if len({taken[i] for i in inside}) > 1:
                who = names(self.exchange.ranks[i] for i in inside)
                raise GuardError(
                    f"{where}: {who} of one tensor-parallel model take different "
                    f"shares, {[taken[i] for i in inside]}: they need the same batch. "
                    "Give the sampler the size of the data axis, and the rank in it."
                )
        if self.shared:
            return
        heads = [taken[i] for i in self.heads]
        if rows[0]["replicas"] < self.teams or len(set(heads)) < self.teams:
            raise GuardError(
                f"{where}: the sampler makes {rows[0]['replicas']} shares, and the "
                f"{size} ranks take the shares {taken}: some samples are trained on "
                "twice. Build it with this group's size and rank."
            )
        self.proved = True

    def _no_sampler(self, where: str, rows: list[dict]) -> None:
        prints = [row["dataset"] for row in rows]
        whole = all(row["whole"] == 1 for row in rows)
        if whole and prints[0] > 0 and len(set(prints)) == 1:
            raise GuardError(
                f"{where}: each of the {self.exchange.size} ranks goes through all "
                f"{rows[0]['samples']} samples: the loader has no DistributedSampler."
            )

    def vote(self, where: str, more: bool, done: int) -> None:
        """Before a batch of unknown number: all ranks have it, or none."""
        have = [bool(row[0]) for row in self.exchange.integers(where, [int(more)])]
        if any(have) and not all(have):
            ranks = zip(self.exchange.ranks, have, strict=True)
            out = names(rank for rank, yes in ranks if not yes)
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
        if len(self.rows) < self.keep and not self.proved and self.exchange.size > 1:
            self.rows += row_digests(batch)[: self.keep - len(self.rows)]

    def numbers(self) -> list[int]:
        """What goes round at a check: the samples so far, as one number."""
        if self.proved or not self.rows:
            return [0, 0]
        return [number(str(self.rows)), len(set(self.rows))]

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Compare the samples so far: equal on two ranks is wrong (on TP: needed)."""
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
                f"the same samples so far ({rows[alike[0]][1]} different ones). Deal "
                "them out by rank: a DistributedSampler, or "
                "islice(rank, None, world_size) if iterable."
            )

    def end(self, where: str, batches: int) -> None:
        """At the end of an epoch: equal counts, and no sample on two ranks."""
        own = [batches, len(set(self.rows)), len(self.rows), *self.rows]
        table = self.exchange.integers(where, own)
        self._same(where, [{"n": r[0]} for r in table], "n", "batches made", LENGTH)
        self.rows, self.keep = [], 0
        if self.proved or self.teams < 2:
            return
        kept = [table[i][3:] for i in self.heads]
        each, union = [set(row) for row in kept], set(itertools.chain(*kept))
        twice = sum(map(len, each)) - len(union)
        clean = all(row[1] >= 0.9 * row[2] for row in table)
        if clean and twice > max(self.exchange.size, 0.1 * len(union)):
            pairs = itertools.combinations(range(len(each)), 2)
            most = max(pairs, key=lambda pair: len(each[pair[0]] & each[pair[1]]))
            who = names(self.exchange.ranks[self.heads[i]] for i in most)
            raise GuardError(
                f"{where}: {twice} samples were on more than one rank, most on {who} "
                f"({len(union)} different ones in {sum(map(len, kept))}). The ranks' "
                "shares must be apart: use a DistributedSampler."
            )


LENGTH = (
    "The ranks must make equally many steps: a rank that has no batch left leaves the "
    "others in a collective, or pairs with it another one."
)
SHARES = "Shares of one order are apart only if all ranks draw that order alike."
