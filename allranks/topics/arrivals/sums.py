"""A collective begins when the last rank calls it: who waits, and for how long."""

from collections.abc import Sequence
from typing import NamedTuple

FIRST = [700, 1600, 1100, 2200]  # ms: when each rank comes, as a reader first sees it


class Waits(NamedTuple):
    """How long ranks wait in one collective.

    Attributes:
        begins: when the last rank calls it, in seconds; None if one never does.
        waits: seconds that each rank waits, (W,); 0 for a rank that never calls it.
    """

    begins: float | None
    waits: list[float]


def waits(arrives: Sequence[float | None], timeout: float) -> Waits:
    """Compute how long each rank waits until all have called a collective.

    Args:
        arrives: when each rank calls it, in seconds, (W,); None for never.
        timeout: seconds after which the waiting ranks are stopped.

    >>> waits([1.0, 3.0], timeout=9), waits([1.0, None], timeout=9)
    (Waits(begins=3.0, waits=[2.0, 0.0]), Waits(begins=None, waits=[8.0, 0.0]))
    """
    begins = None if None in arrives else max(arrives)
    end = timeout if begins is None else begins
    return Waits(begins, [0.0 if at is None else end - at for at in arrives])
