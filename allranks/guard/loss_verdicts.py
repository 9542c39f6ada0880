"""Verdicts on losses that are made of different things: a mistake, or a rank's own."""

from typing import Any, NamedTuple

import torch

from allranks.guard.digests import float_of, number
from allranks.guard.exchange import SAME_NUMBERS, Exchange, GuardError, names
from allranks.guard.replicas import Replicas
from allranks.guard.tape import SCALES, Operation, Taken

TENSOR, NUMBER, COUNT = range(3)  # kinds of entries
ONES = 1e-3  # distance from one of the mean of the ranks' factors, if they are shares
APART = 0.1  # relative distance between counts that matters
JOINS = "cat", "stack"
USES = "mm", "addmm", "bmm", "t", "view", "transpose", "mul"

HELD = (
    "It is part of what the loss is computed from, and not of the data. Nobody sends "
    "it from rank to rank: compute it from all ranks' data, or send rank 0's; and what "
    "trains or updates it must do so on every rank, with gradients that are reduced."
)
OTHER = (
    "{}: {} works with {}, at three checks in a row. What is not data should be one "
    "number on all ranks: compute it from what all of them know."
)
OWN_MEAN = (
    "{}: the loss is divided by each rank's own count, {}. The mean of the ranks' "
    "means is not the mean over all: divide by the sum of the counts over all ranks "
    "(all_reduce), times 1 / world_size."
)
ALONE = (
    "{}: {} takes a tensor that each rank computes from its own samples: {}. It "
    "changes what the loss is, on every rank in another way: all_reduce what it is "
    "made of."
)
CUT = (
    "{}: ranks exchange what has a gradient, and autograd does not see it: what comes "
    "back is a constant for backward, or passes it on as if nothing had been summed. "
    "Use torch.distributed.nn.functional; put a rank's own features back into what it "
    "gathered; and reduce a copy, loss.detach().clone(), if it is only to be shown."
)
DRAWN = (
    "{}: {} draw the same random numbers at {}, from a generator of your own or of "
    "NumPy's: the same noise for other samples. Seed it with seed + rank; if it is "
    'meant, skip=("randomness",).'
)
PARTLY = (
    "{} is part of the loss on {} and not on {}, at {} checks in a row: one process "
    "would do it for all samples or for none. Let every rank do it; if the ranks have "
    'different tasks, skip=("loss",).'
)
TWICE = 3, 4  # checks in a row that show it, if the function knows of ranks, and if not


class Site(NamedTuple):
    """A place where a program uses something."""

    line: str
    name: str  # of the operation
    argument: int | str
    call: str = ""  # which call in the step, of how many; and a tensor's shape

    @property
    def key(self) -> int:
        """Return one number, the same on all ranks."""
        return number("\t".join(map(str, self)))


class Entry(NamedTuple):
    """What a program uses at a site."""

    kind: int  # TENSOR, NUMBER or COUNT
    bits: int  # a digest of it
    value: Any  # a Taken, or a number


class LossVerdicts:
    """Judges what differs, also by what differed at the checks before."""

    def __init__(self, exchange: Exchange, replicas: Replicas) -> None:
        self.exchange, self.replicas = exchange, replicas
        self.buffers: set[Site] = set()  # those that use a buffer of the model
        self.past: dict[int, list[list[int]]] = {}  # what differed, at checks in a row
        self.counts: dict[int, list[list[float]]] = {}  # what losses were divided by
        self.began: dict[int, bool] = {}  # whether all ranks began with one number
        self.drawn: dict[int, Site] = {}  # sites whose numbers this rank has sent
        self.same: dict[int, list[int]] = {}  # sites, and what each rank drew there
        self.parted: dict[int, tuple[frozenset[int], int]] = {}  # ranks with a line
        self.warned: set[tuple[str, str]] = set()  # warnings, and the lines they name

    def equal(self, entries: dict[Site, Entry]) -> None:
        """Take note that all ranks have the same entries."""
        self.past = {}
        for site in entries:
            self.began.setdefault(site.key, True)

    def draws(self, where: str, rows: list[list[int]]) -> None:
        """Raise if ranks have drawn the same numbers at two checks in a row.

        Args:
            where: what this check is called.
            rows: site and digest, for each site of each rank.
        """
        tables = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
        before, self.same = self.same, {}
        for key in tables[0]:
            bits = [table.get(key, place) for place, table in enumerate(tables)]
            alike = [i for i, own in enumerate(bits) if bits.count(own) > 1]
            last = before.get(key)
            self.same[key] = bits
            if not alike or last is None or last[alike[0]] == bits[alike[0]]:
                continue  # what stays the same is no draw
            if len({last[i] for i in alike if bits[i] == bits[alike[0]]}) > 1:
                continue
            site = self.drawn.get(key, Site("a line", "", ""))
            who = names(self.exchange.ranks[i] for i in alike)
            said = f"{site.line} ({site.name})"
            raise GuardError(DRAWN.format(where, who, said), SAME_NUMBERS)

    def lines(self, where: str, own: dict[int, str], alike: bool) -> None:
        """Warn of what only some ranks' losses are made of, check after check.

        Args:
            where: what this check is called.
            own: what this rank's loss is made of, by numbers.
            alike: whether it is the same on all ranks.
        """
        before, self.parted = self.parted, {}
        if alike:
            return
        rows = self.exchange.integers(f"{where}: lines of the loss", list(own))
        sets = [set(row) for row in rows]
        for key in sorted(set().union(*sets) - set.intersection(*sets)):
            there = frozenset(i for i, row in enumerate(sets) if key in row)
            past, count = before.get(key, (there, 0))
            self.parted[key] = there, count + 1 if past == there else 1
        due = [
            (there, count, key)
            for key, (there, count) in self.parted.items()
            if count >= TWICE[key % 2 == 0]
        ]
        if len({there for there, *_ in due}) != 1:
            return  # none, or ranks that each have a task of their own
        there, count, key = due[0]
        ranks = self.exchange.ranks
        text = next(x for x in self.exchange.texts(own.get(key, "")) if x)
        out = [r for i, r in enumerate(ranks) if i not in there]
        who = names(ranks[i] for i in sorted(there))
        if (PARTLY, text) not in self.warned:
            self.warned.add((PARTLY, text))
            self.exchange.warn(PARTLY.format(text, who, names(out), count))

    def judge(
        self, where: str, entries: dict[Site, Entry], table: list[list[int]]
    ) -> None:
        """Raise or warn if entries are not the same on all ranks.

        Args:
            where: what this check is called.
            entries: this rank's.
            table: a row for each rank, with (key of the site, kind, bits) for each of
                its entries.
        """
        tables = [dict(zip(row[::3], row[2::3], strict=True)) for row in table]
        before, self.past = self.past, {}
        for site, (kind, _, value) in entries.items():
            key = site.key
            if not all(key in other for other in tables):
                continue
            bits = [other[key] for other in tables]
            if kind == COUNT:
                self._count(site, self.counts.setdefault(key, []), bits)
            began = self.began.setdefault(key, len(set(bits)) == 1)
            if len(set(bits)) == 1:
                continue
            past = self.past[key] = [*before.get(key, []), bits][-3:]
            if kind == TENSOR and len(past) > 1:
                self._tensor(where, site, value, past)
            elif kind == NUMBER and len(past) > 2:
                self._number(site, past, began)

    def _tensor(
        self, where: str, site: Site, taken: Taken, past: list[list[int]]
    ) -> None:
        moved = [a != b for a, b in zip(*past[-2:], strict=True)]
        tensor, pairs = taken.tensor, [(0, bits) for bits in past[-1]]
        if not all(moved) and site._replace(call="") in self.buffers:
            return  # it is compared as a buffer, which takes more checks
        if all(moved) and not taken.trained:
            if site.name in SCALES or tensor.dim():
                said = self.replicas.element(where, tensor, pairs)
                self._warn(ALONE, site, site.name, said)
            return
        known = taken.trained or isinstance(tensor, torch.nn.Parameter)
        kind = "parameter" if known else "tensor"
        raise GuardError(
            f"{where}: {site.line}: {site.name} takes a {kind} "
            f"{tuple(tensor.shape)} that is not the same on all ranks: "
            f"{self.replicas.element(where, tensor, pairs)} "
            f"({self.exchange.suspects(past[-1])}). {HELD}"
        )

    def _count(self, site: Site, past: list[list[float]], bits: list[int]) -> None:
        past.append([float_of(value) for value in bits])
        whole = all(v >= 1 and v == round(v) for row in past for v in row)
        far = [row for row in past if max(row) - min(row) > APART * max(row)]
        # Counts that never change may be shares, which the program corrects elsewhere.
        if whole and len(far) > 1 and any(row != past[0] for row in past):
            said = ", ".join(f"{v:g}" for v in far[-1])
            self._warn(OWN_MEAN, site, f"{said} by rank")

    def _number(self, site: Site, past: list[list[int]], began: bool) -> None:
        """Warn about a number, unless each rank seems to draw its own.

        If ranks draw a number, it changes on every rank, and they did not begin with
        equal ones.
        """
        values = [[float_of(bits) for bits in row] for row in past]
        still = any(len(set(column)) == 1 for column in zip(*values, strict=True))
        size = len(values[-1])
        shares = all(
            abs(sum(row) / size - 1) < ONES or abs(sum(row) - 1) < ONES
            for row in values
        )
        if (still or (began and site.name in SCALES)) and not shares:
            each = [f"{v:.6g}" for v in values[-1]]
            said = self.exchange.by_ranks(each, " and ")
            self._warn(OTHER, site, site.name, said)

    def _warn(self, warning: str, site: Site, *said: str) -> None:
        """Warn once about a line, since each check would find other numbers in it."""
        if (warning, site.line) not in self.warned:
            self.warned.add((warning, site.line))
            self.exchange.warn(warning.format(site.line, *said))


def cuts(used: list[Operation], size: int) -> list[str]:
    """Return the lines of exchanges that a loss depends on but autograd does not see.

    A sum in place leaves a wrong gradient if it is then divided by ``size``, the number
    of ranks, because backward divides as well, though it has summed nothing. Gathered
    tensors leave a wrong one, too, unless the rank puts back its own part, which is the
    only one with a gradient; then a tensor that was not gathered is joined with those
    that were.
    """
    found, waiting = [], []
    for operation in used:
        for line, apart in list(waiting):
            if operation.name in JOINS and operation.takes & apart:
                waiting.remove((line, apart))
                found += [] if operation.takes - apart else [line]
            elif operation.name in USES and operation.takes & apart:
                waiting.remove((line, apart))
                found.append(line)
        if operation.unseen and operation.name.startswith(("allgather", "all_gather")):
            waiting.append((operation.line, operation.gives))
        if operation.summed and operation.name in SCALES:
            factors = [value for _, value in operation.numbers]
            if any(value in (size, 1 / size) for value in factors):
                found.append(operation.line)
    return found
