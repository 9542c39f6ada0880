"""The list of checks: the name of each, why it is made, and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

CHECKS: dict[str, Check] = {}  # by name, in the order in which they are run


@dataclass(frozen=True)
class Check:
    """One question about the machine.

    Attributes:
        answer: returns (status, found) or (status, found, what to do about it), where
            the status is ok, warn or fail.
        why: the reason for the question, in one sentence for the reader of the answer.
        needs: what must be there, else the check is skipped: ``linux``, ``gpus`` (that
            nvidia-smi sees), ``torch``, ``cuda`` (a build of torch for it), ``devices``
            (of CUDA, that torch can use).
        seconds: how long it may take.
        loads_torch: whether torch has to be imported first, which takes seconds.
    """

    answer: Callable[[], tuple[str, ...]]
    why: str
    needs: tuple[str, ...]
    seconds: float
    loads_torch: bool


def check(
    name: str,
    why: str,
    needs: str = "",
    seconds: float = 60,
    loads_torch: bool = False,
) -> Callable:
    """Register the decorated function as a check.

    Args:
        name: what the report calls it.
        why, needs, seconds, loads_torch: as in ``Check``; ``needs`` in one text.
    """
    things = tuple(needs.split())
    loads_torch = loads_torch or not {"torch", "cuda", "devices"}.isdisjoint(things)

    def register(function: Callable) -> Callable:
        CHECKS[name] = Check(function, why, things, seconds, loads_torch)
        return function

    return register


def warn_if(bad: object, found: str, fix: str) -> tuple[str, ...]:
    """Return the result of a check that ends with ok or with a warning."""
    return ("warn", found, fix) if bad else ("ok", found)
