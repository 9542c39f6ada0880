"""What it means if ranks work with other numbers and tensors: wrong, or their own."""

from typing import NamedTuple

import torch

from .digests import float_of, number
from .exchange import Exchange, GuardError, names
from .operations import SCALES, Taken

TENSOR, NUMBER, COUNT = range(3)  # kinds of entries
ONES = 1e-3  # how near to one the mean of the ranks' factors is, if they are shares
APART = 0.1  # how far counts are apart to matter

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


class Site(NamedTuple):
    """Where a program uses something."""

    line: str
    name: str  # of the operation
    argument: int | str
    call: str = ""  # which one of the step's, of how many; and a tensor's shape

    @property
    def key(self) -> int:
        """One number on all ranks."""
        return number("\t".join(map(str, self)))


class Rulings:
    """Remembers what differed at the checks before.

    Args:
        element: says which element of a tensor differs, as ``Replicas.element`` does.
        tell: warns.
    """

    def __init__(self, exchange: Exchange, element, tell):
        self.exchange, self.element, self.tell = exchange, element, tell
        self.buffers: set[Site] = set()  # those that use the model's
        self.past: dict[int, list] = {}  # what differed, at checks in a row
        self.counts: dict[int, list] = {}  # what losses were divided by
        self.began: dict[int, bool] = {}  # whether all ranks began with one number
        self.told: set[tuple[str, str]] = set()  # warnings, and the lines they name

    def equal(self, entries: dict[Site, tuple]) -> None:
        """All ranks have the same."""
        self.past = {}
        for site in entries:
            self.began.setdefault(site.key, True)

    def judge(self, where: str, entries: dict, table: list[list[int]]) -> None:
        """Raise or warn of entries that are not the same on all ranks.

        Args:
            entries: this rank's: (kind, bits, value) by site.
            table: (the site's key, kind, bits), of every rank.
        """
        tables = [
            dict(zip(r[::3], zip(r[1::3], r[2::3], strict=True), strict=True))
            for r in table
        ]
        before, self.past = self.past, {}
        for site, (kind, _, value) in entries.items():
            key = site.key
            if not all(key in other for other in tables):
                continue
            bits = [other[key][1] for other in tables]
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

    def _tensor(self, where: str, site: Site, taken: Taken, past: list) -> None:
        moved = [a != b for a, b in zip(*past[-2:], strict=True)]
        tensor, pairs = taken.tensor, [(0, bits) for bits in past[-1]]
        if not all(moved) and site._replace(call="") in self.buffers:
            return  # it is compared with the model's buffers, and waited for
        if all(moved) and not taken.trained:
            if site.name in SCALES or tensor.dim():
                self._tell(ALONE, site, site.name, self.element(where, tensor, pairs))
            return
        known = taken.trained or isinstance(tensor, torch.nn.Parameter)
        kind = "parameter" if known else "tensor"
        raise GuardError(
            f"{where}: {site.line}: {site.name} takes a {kind} "
            f"{tuple(tensor.shape)} that is not the same on all ranks: "
            f"{self.element(where, tensor, pairs)} "
            f"({self.exchange.suspects(past[-1])}). {HELD}"
        )

    def _count(self, site: Site, past: list, bits: list[int]) -> None:
        past.append([float_of(value) for value in bits])
        whole = all(v >= 1 and v == round(v) for row in past for v in row)
        far = [row for row in past if max(row) - min(row) > APART * max(row)]
        # Equal ones may be shares that are put right elsewhere.
        if whole and len(far) > 1 and any(row != past[0] for row in past):
            said = ", ".join(f"{v:g}" for v in far[-1])
            self._tell(OWN_MEAN, site, f"{said} by rank")

    def _number(self, site: Site, past: list, began: bool) -> None:
        """Of what a rank draws by itself, no rank stands still, nor began as others."""
        values = [[float_of(bits) for bits in row] for row in past]
        still = any(len(set(column)) == 1 for column in zip(*values, strict=True))
        size = len(values[-1])
        shares = all(
            abs(sum(row) / size - 1) < ONES or abs(sum(row) - 1) < ONES
            for row in values
        )
        if (still or (began and site.name in SCALES)) and not shares:
            groups = self.exchange.split([f"{v:.6g}" for v in values[-1]]).items()
            said = " and ".join(f"{v} on {names(r)}" for v, r in groups)
            self._tell(OTHER, site, site.name, said)

    def _tell(self, warning: str, site: Site, *said: str) -> None:
        """Warn once of a line: at the next check the numbers in it are others."""
        if (warning, site.line) not in self.told:
            self.told.add((warning, site.line))
            self.tell(warning.format(site.line, *said))
