"""Invariant: what a loss is made of, but for the data, is the same on all ranks."""

import struct
from typing import NamedTuple

import torch

from .digests import canonical, local, number, settle, sums
from .exchange import Exchange, GuardError, names
from .loaders import facts
from .tape import READS, SCALES, Operation, Taken, Tape, stands_for_all

ARITHMETIC = (  # where a number is a setting, not a size or an index
    *("mul", "div", "add", "sub", "rsub", "pow", "clamp", "clamp_min", "clamp_max"),
    *("lerp", "lt", "le", "gt", "ge", "maximum", "minimum", "where", "masked_fill"),
    *("native_dropout", "bernoulli", "normal", "uniform", "leaky_relu", "elu"),
)
WEIGHTED = "nll_loss_forward", "nll_loss2d_forward", "binary_cross_entropy"
ONES = 1e-3  # how near to one the mean of the ranks' factors is
APART = 0.1  # how far counts are apart to matter
TENSOR, NUMBER, COUNT = range(3)

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
SECOND = (
    "a second loader reads its whole data set on every rank, so some samples are on "
    "several ranks in one epoch: give it a DistributedSampler too."
)
ALONE = (
    "{}: {} takes a tensor that each rank computes from its own samples: {}. It "
    "changes what the loss is, on every rank in another way: all_reduce what it is "
    "made of."
)


class Fetching(NamedTuple):
    """What an iterator of a DataLoader says of it."""

    dataset: object
    batch_sampler: object


class Sources:
    """Looks at one step now and then, and compares what the ranks worked with.

    A tensor is no data if it is there again in a later step, or if a step leaves it to
    the next, and if it stands for all samples: it is broadcast along the first dim.

    Args:
        element: says which element of a tensor differs, as ``Replicas.element`` does.
        tell: warns, once.
    """

    def __init__(self, exchange: Exchange, model: torch.nn.Module, element, tell):
        self.exchange, self.element, self.tell = exchange, element, tell
        self.model, self.tape = model, Tape(model)
        self.seen: dict[str, dict] = {}  # storages that a place has used before
        self.buffers: set[str] = set()  # places that use the model's
        self.carried: set[str] = set()  # places that use what the step before has made
        self.past: dict[int, list] = {}  # what differed there at the checks before
        self.counts: dict[int, list] = {}  # what losses were divided by
        self.before: dict = {}  # storages made in the step that was seen before
        self.entries: dict[str, tuple] = {}
        self.first = None  # what epoch() fetches from

    def numbers(self) -> list[int]:
        """Whether there is something to compare, and all of it as one number."""
        tape = self.tape
        tape.stop()
        if not tape.roots:
            tape.clear()
            return [0, 0, 0]
        used = tape.used()
        self.entries = self._entries(used)
        self.before = {key: tape.storages[key] for key in tape.made if key}
        tape.clear()
        text = repr([(k, e[:2]) for k, e in self.entries.items()])
        return [1, number(text), self._second(used)]

    def _second(self, used: list[Operation]) -> int:
        """What a loader reads that epoch() does not see, if each rank reads it whole."""
        loaders = {id(o.loader): o.loader for o in used if o.loader is not None}
        for own, loader in loaders.items():
            found = facts(Fetching(loader._dataset, loader._index_sampler))
            if own != id(self.first) and found["whole"] == 1:
                return found["dataset"]
        return 0

    def _entries(self, used: list[Operation]) -> dict[str, tuple]:
        """What to compare, by place: (kind, bits, value, still)."""
        found: dict[str, list] = {}
        alone = not self.tape.gathered
        buffers = {self.tape.key(b) for b in self.model.buffers()}
        carried: set[int] = set()  # what the step before has left, and what it makes
        for operation in used:
            if not operation.line:
                continue
            at = f"{operation.line}\t{operation.name}"
            for taken in operation.leaves:
                site = f"{at}\t{taken.argument}"
                past = self.seen.get(site, {})
                again = taken.storage in past or taken.storage in buffers
                past = {k: ref for k, ref in past.items() if not ref.expired()}
                kept = {taken.storage: self.tape.storages[taken.storage]}
                self.seen[site] = past | kept
                if taken.storage in self.before:
                    self.carried.add(site)
                if site in self.carried:
                    carried.add(taken.storage)
                elif again and self._constant(operation, taken):
                    found.setdefault(site, []).append((TENSOR, taken))
                    if taken.storage in buffers:
                        self.buffers.add(site)
            if operation.takes & carried:
                carried |= operation.gives
            for taken in operation.factors:
                if taken.storage in carried and taken.tensor is not None:
                    found.setdefault(f"{at}\t{taken.argument}", []).append(
                        (TENSOR, taken)
                    )
            if operation.name in ARITHMETIC:
                for argument, value in operation.numbers:
                    site = f"{at}\t{argument}"
                    found.setdefault(site, []).append((NUMBER, value))
            if operation.count is not None and alone:
                found.setdefault(f"{at}\tcount", []).append((COUNT, operation.count))
        return self._read(found)

    def _constant(self, operation: Operation, taken: Taken) -> bool:
        """Whether a tensor stands for all samples."""
        name, tensor = operation.name, taken.tensor
        if tensor is None or name in READS or "norm" in name or _freed(tensor):
            return False
        if taken.storage in self.tape.tables:
            return False
        if isinstance(tensor, torch.nn.Parameter) or tensor.numel() == 1:
            return True
        if name in WEIGHTED and taken.argument == 2:
            return True
        wide = len(tensor.shape) < len(operation.shape) or operation.shape[:1] != (1,)
        wide = wide and stands_for_all(tensor.shape, operation.shape)
        return name in ARITHMETIC and wide

    def _read(self, found: dict[str, list]) -> dict[str, tuple]:
        flat = [
            (f"{site}\t{i} of {len(all_)}{_shape(value)}", kind, value)
            for site, all_ in found.items()
            for i, (kind, value) in enumerate(all_[:20])
        ]
        digests, host = settle(
            [[sums([canonical(local(v.tensor))]) for _, k, v in flat if k == TENSOR]],
            [v.double() for _, k, v in flat if k == COUNT],
        )
        digests, counts, entries = iter(digests[0]), iter(host), {}
        for site, kind, value in flat:
            bits = next(digests) if kind == TENSOR else 0
            value = next(counts).item() if kind == COUNT else value
            bits = bits if kind == TENSOR else _bits(float(value))
            entries[site] = kind, bits, value
        return entries

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Raise or warn if the ranks work with what is not the same."""
        if not all(row[0] for row in rows):
            return
        if all(row[2] for row in rows) and len({row[2] for row in rows}) == 1:
            self.tell(SECOND)
        if len({row[1] for row in rows}) == 1:
            self.past = {}
            return
        own = [x for k, e in self.entries.items() for x in (number(k), e[0], e[1])]
        table = self.exchange.integers(f"{where}: what the loss is made of", own)
        tables = [dict(zip(r[::3], zip(r[1::3], r[2::3], strict=True))) for r in table]  # noqa: B905
        before, self.past = self.past, {}
        for site, (kind, _, value) in self.entries.items():
            key = number(site)
            if not all(key in other for other in tables):
                continue
            bits = [other[key][1] for other in tables]
            if kind == COUNT:
                self._count(site, self.counts.setdefault(key, []), bits)
            if len(set(bits)) == 1:
                continue
            past = self.past[key] = [*before.get(key, []), bits][-3:]
            if kind == TENSOR and len(past) > 1:
                self._tensor(where, site, value, past)
            elif kind == NUMBER:
                self._number(site, past)

    def _tensor(self, where: str, site: str, taken: Taken, past: list) -> None:
        line, name, *_ = site.split("\t")
        moved = [a != b for a, b in zip(*past[-2:], strict=True)]
        tensor, pairs = taken.tensor, [(0, bits) for bits in past[-1]]
        kind = "parameter" if taken.trained else "tensor"
        if not all(moved) and "\t".join(site.split("\t")[:3]) in self.buffers:
            return  # it is compared with the model's buffers, and waited for
        if all(moved) and not taken.trained:
            if name in SCALES or tensor.dim():
                said = self.element(where, tensor, pairs)
                self.tell(ALONE.format(line, name, said))
            return
        raise GuardError(
            f"{where}: {line}: {name} takes a {kind} {tuple(tensor.shape)} that is not "
            f"the same on all ranks: {self.element(where, tensor, pairs)} "
            f"({self.exchange.suspects(past[-1])}). {HELD}"
        )

    def _count(self, site: str, past: list, bits: list[int]) -> None:
        past.append([_float(value) for value in bits])
        whole = all(v >= 1 and v == round(v) for row in past for v in row)
        far = [row for row in past if max(row) - min(row) > APART * max(row)]
        # Equal ones may be shares that are put right elsewhere.
        if whole and len(far) > 1 and any(row != past[0] for row in past):
            said = ", ".join(f"{v:g}" for v in far[-1])
            self.tell(OWN_MEAN.format(site.split("\t")[0], f"{said} by rank"))

    def _number(self, site: str, past: list) -> None:
        if len(past) < 3:
            return
        values = [[_float(bits) for bits in row] for row in past]
        still = any(len(set(column)) == 1 for column in zip(*values, strict=True))
        size = len(values[-1])
        shares = all(
            abs(sum(row) / size - 1) < ONES or abs(sum(row) - 1) < ONES
            for row in values
        )
        if still and not shares:
            groups = self.exchange.split([f"{v:.6g}" for v in values[-1]]).items()
            said = " and ".join(f"{v} on {names(r)}" for v, r in groups)
            line, name, *_ = site.split("\t")
            self.tell(OTHER.format(line, name, said))


def _shape(value) -> str:
    return f"\t{tuple(value.tensor.shape)}" if isinstance(value, Taken) else ""


def _freed(tensor: torch.Tensor) -> bool:
    """Whether the memory is gone, as of a whole parameter that FSDP2 gathered."""
    own = local(tensor)
    return own.untyped_storage().nbytes() < own.numel() * own.element_size()


def _bits(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


def _float(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<q", bits))[0]
