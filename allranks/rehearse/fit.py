"""Which batch would still fit: what of a GPU's memory grows with the batch.

The rehearsal has one batch size, so this is an extrapolation: a tensor that has the
batch as a dimension grows with it, and all others stay. A larger batch may have its
peak at another moment, which is why several moments are kept, and not the peak alone.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

FACTORS = [2**i for i in range(17)]  # batches for which the worst moment is kept
MOST_SIZES = 8  # of batches, as an evaluation may have another, and the last one, too
Moment = tuple[int, int]  # bytes in use, and those of them that grow with the batch


class Growth:
    """Knows the bytes on one GPU that grow with the batch, and the worst moments.

    Args:
        batch: returns the samples of the batch in work; 0 if they are not known.
        fixed: shapes that no batch gives, those of parameters and buffers.
    """

    def __init__(
        self, batch: Callable[[], int], fixed: Container[tuple[int, ...]]
    ) -> None:
        self.batch, self.fixed = batch, fixed
        self.blocks: dict[int, int] = {}  # by storage, those that grow
        self.growing = 0  # bytes
        self.rising = False  # whether something was taken since the last look
        self.worst: dict[int, list[Moment]] = {}  # by batch, one for each factor
        self.lacking: list[tuple[int, *Moment]] = []  # each time that it did not fit

    def took(self, key: int, shape: Sequence[int], num_bytes: int, stays: bool) -> None:
        """Note a new storage; one of the optimizer or of a collective ``stays``."""
        self.rising = True
        if not stays and grows(shape, self.batch(), self.fixed):
            self.blocks[key] = num_bytes
            self.growing += num_bytes

    def frees(self, key: int, in_use: int) -> None:
        """Look at this moment, if a free ends a rise, and forget a storage."""
        self.look(in_use)
        self.growing -= self.blocks.pop(key, 0)

    def lacks(
        self, in_use: int, shape: Sequence[int], num_bytes: int, stays: bool
    ) -> None:
        """Keep the moment at which a storage did not fit."""
        batch, grown = self.batch(), self.growing
        if not stays and grows(shape, batch, self.fixed):
            grown += num_bytes
        self.lacking = [*self.lacking[-MOST_SIZES:], (batch, in_use + num_bytes, grown)]

    def look(self, in_use: int) -> None:
        """Keep this moment, if it is the worst for any factor."""
        if not self.rising:
            return
        self.rising, batch = False, self.batch()
        worst = self.worst.setdefault(batch, [(0, 0)] * len(FACTORS))
        more = self.growing
        for at, factor in enumerate(FACTORS):
            held, grown = worst[at]
            if in_use + (factor - 1) * more > held + (factor - 1) * grown:
                worst[at] = in_use, more
        if len(self.worst) > MOST_SIZES:
            del self.worst[min(self.worst)]

    def facts(self, batch: int) -> dict[str, Any]:
        """Return the worst moments of a batch; those of others do not grow with it."""
        own = set(self.worst.get(batch, ()))
        others = [worst[0][0] for b, worst in self.worst.items() if b != batch]
        moments = own | {(held, 0) for held in others} if own else own
        return {"batch": batch, "moments": sorted(moments), "lacking": self.lacking}


def grows(shape: Sequence[int], batch: int, fixed: Container[tuple[int, ...]]) -> bool:
    """Tell whether a tensor of some shape has the batch as a dimension.

    >>> grows((32, 10), 32, []), grows((32 * 8, 10), 32, []), grows((10, 10), 32, [])
    (True, True, False)
    """
    if not shape or not batch or tuple(shape) in fixed:
        return False
    if len(shape) == 1:
        return shape[0] == batch  # a longer row may be a flat parameter
    return batch in shape or (shape[0] > 0 and shape[0] % batch == 0)


def peak(moments: Sequence[Moment], batch: int, other: int) -> float:
    """Return the bytes at the peak of another batch.

    Args:
        moments: of the batch that was rehearsed.
        batch: its samples.
        other: those of the other batch.
    """
    return max(held + (other / batch - 1) * grown for held, grown in moments)


def largest(moments: Sequence[Moment], batch: int, capacity: int) -> int | None:
    """Return the largest batch that would fit; None if nothing grows with the batch.

    >>> largest([(100, 40), (90, 80)], batch=8, capacity=210)
    20
    """
    room = [
        batch * (1 + (capacity - held) / grown) for held, grown in moments if grown > 0
    ]
    return int(min(room)) if room else None


class Estimate(NamedTuple):
    """Which batch would fit on a GPU, by which other one, and how it grows with it."""

    batch: int  # that was rehearsed
    grown: float  # bytes a sample
    most: int  # that would fit
    bound: bool  # whether even this may not, as memory ran out before the peak


def estimate(growth: Mapping[str, Any], capacity: int, steps: int) -> Estimate | None:
    """Return the largest batch that would fit; None if that cannot be told.

    Args:
        growth: the facts of a GPU's.
        capacity: its bytes.
        steps: that were taken; from two on, each moment of a step has been seen.
    """
    found = []
    if steps > 1 and growth["moments"]:
        found.append((growth["batch"], growth["moments"], False))
    found += [(batch, [moment], True) for batch, *moment in growth["lacking"] if batch]
    estimates = [
        Estimate(batch, max(grown for _, grown in moments) / batch, most, bound)
        for batch, moments, bound in found
        if (most := largest(moments, batch, capacity)) is not None
    ]
    return min(estimates, key=lambda estimate: estimate.most, default=None)
