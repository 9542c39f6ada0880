"""The arithmetic of timelines: how long a rank worked, waited, and in which call.

A job is a cell, or a call, that every rank ran. A span is one call in it that can wait
for other ranks: a collective, a send or a receive, ``Work.wait()``, or ``backward``.
What lies between spans is the rank's own work.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Span(NamedTuple):
    """One call that can wait for other ranks; all times in s, on one clock for all.

    Attributes:
        name: of the called function, such as ``all_reduce`` or ``irecv.wait``.
        start: when the call began.
        end: when it returned or raised.
        line: number of the reader's own line that called; 0 if there is none.
        file: the name under which that line was compiled; "" if there is none.
        waited: how much of it the rank did not compute: all of a collective, a part
            of ``backward``.
    """

    name: str
    start: float
    end: float
    line: int
    file: str
    waited: float


@dataclass(frozen=True)
class Job:
    """What one rank did in one job.

    Attributes:
        start: when it began, in s.
        end: when it ended, in s.
        spans: in the order of time; they do not overlap.
        dropped: number of calls beyond those in ``spans``.
        dropped_s: seconds that they waited.
    """

    start: float
    end: float
    spans: list[Span] = field(default_factory=list)
    dropped: int = 0
    dropped_s: float = 0.0

    @property
    def waited(self) -> float:
        """Return the seconds in which the rank waited for others or communicated."""
        return sum(span.waited for span in self.spans) + self.dropped_s

    @property
    def worked(self) -> float:
        """Return the seconds of the rank's own work."""
        return max(0.0, self.end - self.start - self.waited)

    def most(self) -> tuple[Span, int, float] | None:
        """Return the call in which the rank waited longest, taken over all its runs.

        Returns:
            One of the spans of that name and line, how many there are, and the seconds
            that all of them waited; None if the rank never waited.
        """
        sums: dict[tuple, list] = {}
        for span in self.spans:
            entry = sums.setdefault((span.name, span.file, span.line), [span, 0, 0.0])
            entry[1] += 1
            entry[2] += span.waited
        most = max(sums.values(), key=lambda entry: entry[2], default=None)
        return tuple(most) if most and most[2] > 0 else None


def place(span: Span, cell: str = "") -> str:
    """Say where a span's call stands: in a line of the cell or of another file.

    Args:
        span: the call.
        cell: the file name under which the cell was compiled.

    >>> place(Span("barrier", 0, 1, 3, "ranks cell 2", 1), "ranks cell 2")
    'cell line 3'
    >>> place(Span("barrier", 0, 1, 40, "scripts/train.py", 1), "ranks cell 2")
    'train.py line 40'
    """
    if not span.line:
        return ""
    return f"{'cell' if span.file == cell else Path(span.file).name} line {span.line}"


def show_time(seconds: float) -> str:
    """Write a duration in s or ms, with the digits that matter.

    >>> [show_time(s) for s in (12.345, 0.2041, 0.0123, 0.00123, 0.0000456, 0)]
    ['12.3 s', '204 ms', '12 ms', '1.2 ms', '0.05 ms', '0 ms']
    """
    if seconds >= 1:
        return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
    ms = 1e3 * seconds
    digits = 0 if ms >= 9.95 else 1 if ms >= 0.95 else 2
    text = f"{ms:.{digits}f}"
    return f"{0 if not float(text) else text} ms"


def ticks(length: float, at_most: int = 6) -> list[float]:
    """Return round times from 0 on, in s, for the axis of a picture.

    Args:
        length: of the axis, in s.
        at_most: the largest number of ticks.

    >>> ticks(0.23)
    [0.0, 0.05, 0.1, 0.15, 0.2]
    """
    if length <= 0:
        return [0.0]
    step = 1e-9
    while True:
        for factor in 1, 2, 5:
            number = int(length / (factor * step) + 1e-9)
            if number < at_most:
                return [round(i * factor * step, 12) for i in range(number + 1)]
        step *= 10
