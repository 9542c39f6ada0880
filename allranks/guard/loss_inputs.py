"""Invariant: except for the data, a loss is made of the same things on all ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from allranks.guard.digests import bits_of, canonical, local, number, settle, sums
from allranks.guard.exchange import Exchange
from allranks.guard.loaders import facts
from allranks.guard.loss_verdicts import (
    COUNT,
    CUT,
    NUMBER,
    TENSOR,
    Entry,
    LossVerdicts,
    Site,
    cuts,
)
from allranks.guard.randomness import drawers
from allranks.guard.replicas import Replicas
from allranks.guard.tape import (
    LIFTS,
    READS,
    TABLES,
    Operation,
    Taken,
    Tape,
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
RANK = "rank", "main", "master", "leader"
TIMES = 20  # a line that runs more often in one step is a loop
SECOND = (
    "a second loader reads its whole data set on every rank, so some samples are on "
    "several ranks in one epoch: give it a DistributedSampler too."
)


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
        self.first: Any = None  # the iterator from which epoch() fetches
        self.states: dict[int, int] = {}  # of generators outside of torch
        self.off = False
        self.shared = shared  # whether ranks may draw the same random numbers
        self.lines: dict[int, str] = {}  # what only the loss of some ranks may have

    @contextmanager
    def look(self, due: bool, batch: list[Any] | None = None) -> Iterator[None]:
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
        """Return facts about what the loss is made of, for the exchange.

        They are: whether there is something to compare, its hash, a second loader's
        number, a hash of the lines, and then pairs of site and digest of what each rank
        drew.
        """
        tape = self.tape
        tape.stop()
        if tape.unclipped:
            self.exchange.warn(UNCLIPPED.format(tape.unclipped))
        if not tape.roots:
            tape.clear()
            return [0, 0, 0, 0]
        used = tape.used()
        self.entries = self._entries(used)
        self.lines = {} if tape.gathered else self._lines(used)
        drawn = [] if self.shared else self._drawn(used)
        for line in cuts(used, self.exchange.size):
            self.exchange.warn(CUT.format(line))
        self.before = {key: tape.storages[key] for key in tape.made if key}
        self.blended = tape.blended & set(self.before)
        tape.clear()
        text = repr([(site, e.kind, e.bits) for site, e in self.entries.items()])
        lines = number(repr(sorted(self.lines)))
        return [1, number(text), self._second(used), lines, *drawn]

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Raise or warn if the ranks computed with different things."""
        if not all(row[0] for row in rows):
            return
        if all(row[2] for row in rows) and len({row[2] for row in rows}) == 1:
            self.exchange.warn(SECOND)
        self.verdicts.draws(where, [row[4:] for row in rows])
        alike = len({row[3] for row in rows}) == 1
        self.verdicts.lines(where, {} if alike else self.lines, alike)
        if len({row[1] for row in rows}) == 1:
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
        found = {}
        for operation in used:
            if operation.line and operation.makes and not operation.fetches:
                text = f"{operation.line}: {operation.name}"
                steers = names_rank(self.tape.codes.get(operation.line))
                found[number(text) // 4 * 2 + steers] = text
        return found

    def _drawn(self, used: list[Operation]) -> list[int]:
        """Return site and digest of what generators drew that nobody else looks at.

        They are torch's generators of one's own, and those of NumPy and Python, if one
        of them has moved since the last check: a tensor with a row for each sample then
        comes from outside of torch in each step. Other tensors may be equal on all
        ranks for many reasons: a codebook is, and whatever was broadcast.
        """
        found: dict[Site, torch.Tensor] = {}
        outside: dict[Site, torch.Tensor] = {}
        for place, operation in enumerate(used):
            if not operation.line or operation.fetches or len(found) == DRAWS:
                continue
            site = Site(operation.line, operation.name, "drawn")
            later = used[place + 1 :]
            if operation.drawn is not None and not self._stored(operation, later):
                found.setdefault(site, operation.drawn)
            lifted = operation.leaves if operation.name == LIFTS else ()
            for tensor in (x.tensor for x in lifted if x.tensor is not None):
                rows = self.tape.by_sample(tensor)
                if rows is not None and rows.is_floating_point():
                    outside.setdefault(site, rows)
        if outside:
            before, self.states = self.states, drawers()
            if any(before.get(key) != state for key, state in self.states.items()):
                found |= outside
        several = {site: x for site, x in found.items() if len(x.unique()) > 3}
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
            found = facts(Fetching(loader._dataset, loader._index_sampler))
            if own != id(self.first) and found["whole"] == 1:
                return found["dataset"]
        return 0

    def _entries(self, used: list[Operation]) -> dict[Site, Entry]:
        """Return what there is to compare, by site."""
        found: dict[Site, list[tuple[int, Any]]] = {}
        alone = not self.tape.gathered
        buffers = {self.tape.key(b) for b in self.model.buffers()}
        carried: set[int] = set()  # left by the step before, or computed from that
        for operation in used:
            if not operation.line:
                continue
            at = partial(Site, operation.line, operation.name)
            for taken in () if operation.fetches else operation.leaves:
                site = at(taken.argument)
                again = self._again(site, taken.storage)
                lasts = again or taken.storage in buffers
                if site in self.carried:
                    carried.add(taken.storage)
                    if taken.storage in self.blended:
                        self.averages.add(site)
                    lasts = taken.tensor is not None and taken.tensor.numel() > 1
                    lasts = lasts and site in self.averages
                if lasts and self._constant(operation, taken):
                    found.setdefault(site, []).append((TENSOR, taken))
                    if taken.storage in buffers:
                        self.verdicts.buffers.add(site)
            if operation.takes & carried:
                carried |= operation.gives
            for taken in operation.factors:
                if taken.storage in carried and taken.tensor is not None:
                    found.setdefault(at(taken.argument), []).append((TENSOR, taken))
            for argument, value in operation.numbers:
                names = FLOATS if type(value) is float else INTS
                if operation.name in names:
                    found.setdefault(at(argument), []).append((NUMBER, value))
            if operation.count is not None and alone:
                found.setdefault(at("count"), []).append((COUNT, operation.count))
        return self._read(found)

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
            return True  # centres, one for each class, that samples move
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

    def _read(self, found: dict[Site, list[tuple[int, Any]]]) -> dict[Site, Entry]:
        """Bring everything that was found to the CPU in one copy."""
        flat = [
            (site._replace(call=f"{i} of {len(all_)}{_shape(value)}"), kind, value)
            for site, all_ in found.items()
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


def names_rank(code: CodeType | None) -> bool:
    """Tell whether a function mentions the rank, so that it may steer by it."""
    if code is None:
        return False
    words = (*code.co_names, *code.co_freevars, *code.co_varnames)
    return any(word in RANK for name in words for word in name.lower().split("_"))


def _shape(value: Any) -> str:
    return f" {tuple(value.tensor.shape)}" if isinstance(value, Taken) else ""


def _freed(tensor: torch.Tensor) -> bool:
    """Tell whether the memory is freed, as FSDP2 does with gathered parameters."""
    own = local(tensor)
    return own.untyped_storage().nbytes() < own.numel() * own.element_size()
