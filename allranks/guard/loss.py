"""Invariant: except for the data, a loss is made of the same things on all ranks.

``LossInputs`` picks from the tape of a step what is not data. ``LossVerdicts`` compares
it between ranks, and tells a mistake from what a rank may have for itself.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from allranks.guard.datasets import facts
from allranks.guard.digests import (
    bits_of,
    canonical,
    float_of,
    local,
    number,
    settle,
    sums,
)
from allranks.guard.exchange import SAME_NUMBERS, Exchange, GuardError, names
from allranks.guard.randomness import drawers
from allranks.guard.replicas import Replicas
from allranks.guard.tape import (
    LIFTS,
    READS,
    SCALES,
    TABLES,
    Operation,
    Taken,
    Tape,
    cuts,
    names_rank,
    stands_for_all,
)

FLOATS = (  # operations in which a number is a setting, not a size or an index
    *("mul", "div", "add", "sub", "rsub", "pow", "clamp", "clamp_min", "clamp_max"),
    *("lerp", "lt", "le", "gt", "ge", "maximum", "minimum", "where", "masked_fill"),
    *("native_dropout", "bernoulli", "normal", "uniform", "leaky_relu", "elu"),
    *("huber_loss", "smooth_l1_loss", "softplus", "threshold", "hardtanh"),
)
INTS = "mul", "div", "pow", "topk"  # in all others a whole number shifts an index
WEIGHTED = {  # losses, and which of their arguments are weights of classes
    "nll_loss_forward": (2,),
    "nll_loss2d_forward": (2,),
    "binary_cross_entropy": (2,),
    "binary_cross_entropy_with_logits": (2, 3),
    "multi_margin_loss": (4,),
}
AGAINST = {  # operations that hold each sample against all rows of a table, and which
    "mm": 1,
    "addmm": 2,
    "_cdist_forward": 1,
    "_euclidean_dist": 1,
}
DRAWS = 8  # sites at which numbers of one's own generators are looked at
UNCLIPPED = (
    "{}: gradients are given where parameters are wanted. A gradient has no .grad of "
    "its own, so nothing is clipped: clip_grads_with_norm_ and clip_grad_norm_ take "
    "model.parameters()."
)
TIMES = 20  # a line that runs more often in one step is a loop
SECOND = (
    "a second loader reads its whole data set on every rank, so some samples are on "
    "several ranks in one epoch: give it a DistributedSampler too."
)
TENSOR, NUMBER, COUNT = range(3)  # kinds of entries
ONES = 1e-3  # distance from one of the mean of the ranks' factors, if they are shares
APART = 0.1  # relative distance between counts that matters

HELD = (
    "It is part of what the loss is computed from, and not of the data. Nobody sends "
    "it from rank to rank: compute it from all ranks' data, or send rank 0's; and what "
    "trains or updates it must do so on every rank, with gradients that are reduced."
)
OTHER = (
    "{}: {} uses {}, at three checks in a row. It is not data, so it should be the "
    "same number on all ranks: compute it from what all of them know."
)
OWN_MEAN = (
    "{}: the loss is divided by each rank's own count, {}. The mean of the ranks' "
    "means is not the mean over all: divide by the sum of the counts over all ranks "
    "(all_reduce), times 1 / world_size."
)
ALONE = (
    "{}: {} takes a tensor that each rank computes from its own samples: {}. So each "
    "rank has a different loss function: all_reduce what the tensor is made of."
)
CUT = (
    "{}: the ranks exchange a tensor that has a gradient, and autograd does not see "
    "it. For backward, the result is a constant, or as if nothing had been summed. "
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


class Made(NamedTuple):
    """What a rank tells about the loss of one step."""

    recorded: int = 0  # 1 if there is something to compare
    entries: int = 0  # a hash of sites and what they use
    second_loader: int = 0  # the data set of one that epoch() does not see
    lines: int = 0  # a hash of the lines that compute it


class Fetching(NamedTuple):
    """What the iterator of a DataLoader tells about the loader."""

    dataset: Any
    batch_sampler: Any


class LossInputs:
    """Looks at one step now and then, and finds what the ranks computed with.

    A tensor is not data if it is used again in a later step, or if one step leaves it
    to the next, and if it is the same for all samples: broadcast along the first dim.
    """

    def __init__(
        self,
        exchange: Exchange,
        model: torch.nn.Module,
        replicas: Replicas,
        shared: bool = False,
    ) -> None:
        self.exchange = exchange
        self.model, self.tape = model, Tape(model)
        self.verdicts = LossVerdicts(exchange, replicas)
        self.seen: dict[Site, dict[int, StorageWeakRef]] = {}  # what each used before
        self.carried: set[Site] = set()  # those that use what an earlier step made
        self.before: dict[int, StorageWeakRef] = {}  # made in the last recorded step
        self.blended: set[int] = set()  # of that memory, what a moving average made
        self.averages: set[Site] = set()  # those that use such memory
        self.entries: dict[Site, Entry] = {}
        self.iterator: Any = None  # the iterator from which epoch() fetches
        self.states: dict[int, int] = {}  # of generators outside of torch
        self.off = False
        self.shared = shared  # whether ranks may draw the same random numbers
        self.lines: dict[int, str] = {}  # what only the loss of some ranks may have

    @contextmanager
    def record(self, due: bool, batch: list[Any] | None = None) -> Iterator[None]:
        """Record what a block does with a batch, or to get one.

        Args:
            due: whether to record; otherwise nothing happens.
            batch: the batch's tensors; None while it is being fetched.
        """
        if due and not self.off:
            self.tape.start(batch)
        try:
            yield
        finally:
            self.tape.stop()

    def numbers(self) -> list[int]:
        """Return a ``Made``, and then pairs of site and digest of what was drawn."""
        tape = self.tape
        tape.stop()
        if tape.unclipped:
            self.exchange.warn(UNCLIPPED.format(tape.unclipped))
        if not tape.roots:
            tape.clear()
            return [*Made()]
        used = tape.used()
        self.entries = self._entries(used)
        # If ranks exchange something, one may well compute what the others receive.
        self.lines = {} if tape.gathered else self._lines(used)
        drawn = [] if self.shared else self._drawn(used)
        for line in cuts(used, self.exchange.size):
            self.exchange.warn(CUT.format(line))
        self.before = {key: tape.storages[key] for key in tape.made if key}
        self.blended = tape.blended & set(self.before)
        tape.clear()
        text = repr([(site, e.kind, e.bits) for site, e in self.entries.items()])
        lines = number(repr(sorted(self.lines)))
        return [*Made(1, number(text), self._second(used), lines), *drawn]

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Raise or warn if the ranks computed with different things."""
        count = len(Made._fields)
        made = [Made(*row[:count]) for row in rows]
        if not all(one.recorded for one in made):
            return
        second = [one.second_loader for one in made]
        if all(second) and len(set(second)) == 1:
            self.exchange.warn(SECOND)
        self.verdicts.draws(where, [row[count:] for row in rows])
        alike = len({one.lines for one in made}) == 1
        self.verdicts.lines(where, {} if alike else self.lines, alike)
        if len({one.entries for one in made}) == 1:
            self.verdicts.equal(self.entries)
            return
        own = [
            x for site, e in self.entries.items() for x in (site.key, e.kind, e.bits)
        ]
        table = self.exchange.integers(f"{where}: what the loss is made of", own)
        self.verdicts.judge(where, self.entries, table)

    def _lines(self, used: list[Operation]) -> dict[int, str]:
        """Return what computes the loss, by a number that is odd if ranks may steer it.

        A function that knows the word rank may do what one rank alone should.
        """
        lines = {}
        for operation in used:
            if operation.line and operation.makes and not operation.fetches:
                text = f"{operation.line}: {operation.name}"
                steers = names_rank(self.tape.codes.get(operation.line))
                lines[number(text) // 4 * 2 + steers] = text
        return lines

    def _drawn(self, used: list[Operation]) -> list[int]:
        """Return site and digest of what generators drew that nobody else looks at.

        They are torch's generators of one's own, and those of NumPy and Python, if one
        of them has moved since the last check: a tensor with a row for each sample then
        comes from outside of torch in each step. Other tensors may be equal on all
        ranks for many reasons: a codebook is, and whatever was broadcast.
        """
        drawn: dict[Site, torch.Tensor] = {}
        outside: dict[Site, torch.Tensor] = {}
        for place, operation in enumerate(used):
            if not operation.line or operation.fetches or len(drawn) == DRAWS:
                continue
            site = Site(operation.line, operation.name, "drawn")
            later = used[place + 1 :]
            if operation.drawn is not None and not self._stored(operation, later):
                drawn.setdefault(site, operation.drawn)
            lifted = operation.leaves if operation.name == LIFTS else ()
            for tensor in (x.tensor for x in lifted if x.tensor is not None):
                rows = self.tape.by_sample(tensor)
                if rows is not None and rows.is_floating_point():
                    outside.setdefault(site, rows)
        # What comes from NumPy need not be drawn; it is if a generator has moved.
        if outside:
            before, self.states = self.states, drawers()
            if any(before.get(key) != state for key, state in self.states.items()):
                drawn |= outside
        # Signs or a mask may be equal by chance; more different numbers are not.
        several = {site: x for site, x in drawn.items() if len(x.unique()) > 3}
        digests, _ = settle([[sums([x]) for x in several.values()]])
        self.verdicts.drawn = dict(zip([s.key for s in several], several, strict=True))
        pairs = zip(several, digests[0], strict=True)
        return [x for site, bits in pairs for x in (site.key, bits)]

    def _stored(self, draw: Operation, later: list[Operation]) -> bool:
        """Tell whether what was drawn goes into memory that lasts, or picks samples.

        A codebook gets new entries in that way, the same on all ranks.
        """
        behind, lasting = set(draw.gives), set(self.tape.known)
        for operation in later:
            lasting |= {taken.storage for taken in operation.leaves}
            if operation.takes & behind:
                if operation.gives & operation.takes & lasting and operation.makes:
                    return True
                made = not operation.leaves and not operation.takes & self.tape.known
                if made and operation.name in TABLES and operation.takes & draw.gives:
                    return True
                behind |= operation.gives
        return False

    def _second(self, used: list[Operation]) -> int:
        """Return the data set's number of a second loader; 0 if all is well.

        It is a loader that epoch() does not see, and that reads the whole data set.
        """
        loaders = {id(o.loader): o.loader for o in used if o.loader is not None}
        for own, loader in loaders.items():
            about = facts(Fetching(loader._dataset, loader._index_sampler))
            if own != id(self.iterator) and about["whole"] == 1:
                return about["dataset"]
        return 0

    def _entries(self, used: list[Operation]) -> dict[Site, Entry]:
        """Return what there is to compare, by site."""
        uses: defaultdict[Site, list[tuple[int, Any]]] = defaultdict(list)
        alone = not self.tape.gathered
        buffers = {self.tape.key(b) for b in self.model.buffers()}
        carried: set[int] = set()  # left by the step before, or computed from that
        for operation in used:
            if not operation.line:
                continue
            at = partial(Site, operation.line, operation.name)
            for taken in () if operation.fetches else operation.leaves:
                site = at(taken.argument)
                # Memory that a site uses in two steps is no batch.
                lasts = self._again(site, taken.storage) or taken.storage in buffers
                if site in self.carried:
                    # One step leaves it to the next, as recurrent state or a moving
                    # average. The state belongs to the rank's samples.
                    carried.add(taken.storage)
                    if taken.storage in self.blended:
                        self.averages.add(site)
                    lasts = taken.tensor is not None and taken.tensor.numel() > 1
                    lasts = lasts and site in self.averages
                if lasts and self._constant(operation, taken):
                    uses[site].append((TENSOR, taken))
                    if taken.storage in buffers:
                        self.verdicts.buffers.add(site)
            if operation.takes & carried:
                carried |= operation.gives
            for taken in operation.factors:
                if taken.storage in carried and taken.tensor is not None:
                    uses[at(taken.argument)].append((TENSOR, taken))
            for argument, value in operation.numbers:
                if operation.name in (FLOATS if type(value) is float else INTS):
                    uses[at(argument)].append((NUMBER, value))
            # A count of all ranks has been exchanged, and is no rank's own.
            if operation.count is not None and alone:
                uses[at("count")].append((COUNT, operation.count))
        return self._read(uses)

    def _again(self, site: Site, storage: int) -> bool:
        """Tell whether a site has used this memory before.

        If the step before has made the memory, the site is added to ``carried``.
        """
        past = self.seen.get(site, {})
        kept = {key: ref for key, ref in past.items() if not ref.expired()}
        self.seen[site] = kept | {storage: self.tape.storages[storage]}
        if storage in self.before:
            self.carried.add(site)
        return storage in past

    def _constant(self, operation: Operation, taken: Taken) -> bool:
        """Tell whether a tensor is the same for all samples."""
        name, tensor = operation.name, taken.tensor
        if tensor is None or "norm" in name or _freed(tensor):
            return False
        if operation.by_label and taken.argument == 0:
            return True
        blended = taken.storage in self.tape.blended or taken.storage in self.blended
        if blended and operation.by_class and taken.argument == 0:
            return True  # centers, one for each class, that samples move
        if blended and AGAINST.get(name) == taken.argument:
            return True  # a codebook, or prototypes
        if name in READS or taken.storage in self.tape.tables:
            return False
        if isinstance(tensor, torch.nn.Parameter) or tensor.numel() == 1:
            return True
        if taken.argument in WEIGHTED.get(name, ()):
            return True
        wide = len(tensor.shape) < len(operation.shape) or operation.shape[:1] != (1,)
        wide = wide and stands_for_all(tensor.shape, operation.shape)
        return name in FLOATS and wide

    def _read(self, uses: dict[Site, list[tuple[int, Any]]]) -> dict[Site, Entry]:
        """Bring kinds and values of what sites use to the CPU, in one copy."""
        flat = [
            (site._replace(call=f"{i} of {len(all_)}{_shape(value)}"), kind, value)
            for site, all_ in uses.items()
            for i, (kind, value) in enumerate(all_[:TIMES])
        ]
        digests, host = settle(
            [[sums([canonical(local(v.tensor))]) for _, k, v in flat if k == TENSOR]],
            [v.double() for _, k, v in flat if k == COUNT],
        )
        digests, counts, entries = iter(digests[0]), iter(host), {}
        for site, kind, value in flat:
            value = next(counts).item() if kind == COUNT else value
            bits = next(digests) if kind == TENSOR else bits_of(float(value))
            entries[site] = Entry(kind, bits, value)
        return entries


def _shape(value: Any) -> str:
    return f" {tuple(value.tensor.shape)}" if isinstance(value, Taken) else ""


def _freed(tensor: torch.Tensor) -> bool:
    """Tell whether the memory is freed, as FSDP2 does with gathered parameters."""
    own = local(tensor)
    return own.untyped_storage().nbytes() < own.numel() * own.element_size()


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
                continue  # a term that only some ranks have, which is for ``lines``
            bits = [other[key] for other in tables]
            if kind == COUNT:
                self._count(site, self.counts.setdefault(key, []), bits)
            began = self.began.setdefault(key, len(set(bits)) == 1)
            if len(set(bits)) == 1:
                continue
            # One check is no proof: a tensor must differ at two in a row, and a number
            # at three, because a rank may draw numbers of its own.
            past = self.past[key] = [*before.get(key, []), bits][-3:]
            if kind == TENSOR and len(past) > 1:
                self._tensor(where, site, value, past)
            elif kind == NUMBER and len(past) > 2:
                self._number(site, past, began)

    def _tensor(
        self, where: str, site: Site, taken: Taken, past: list[list[int]]
    ) -> None:
        """Raise for a tensor; only warn if all ranks compute it anew in each step."""
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
        """Warn if a loss is divided by a rank's own count, which others do not have."""
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
