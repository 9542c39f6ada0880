"""How long to wait for ranks: a limit, and an earlier end once nothing moves."""

from collections.abc import Iterable
from typing import Literal

from allranks.live.processes import RankProcesses

GRACE = 0.25  # seconds without any progress, once a rank has failed
POLL_S = 0.05  # seconds between two questions whether anything moves
PROGRESS_S = 0.1  # seconds between two looks at what ranks print, and which calls end


class Patience:
    """Counts the seconds that ranks may still take; it has no clock of its own.

    Two counts run. ``spent`` ends the waiting when it reaches the limit. ``idle`` ends
    it when nothing has moved for ``grace`` seconds, which it counts only if a rank has
    failed, on whom the others may wait for ever, or if there is a ``stall``.

    Args:
        crew: the processes.
        ranks: those that are waited for.
        limit: seconds without a print or the end of a collective; with ``stall``
            seconds in all, in which ranks wait or compute rather than queue for a core.
        stall: seconds without any progress that count as a hang; None for no such end.
        spins: whether a rank that waits keeps a processor busy, as for a GPU. Then a
            busy processor is no progress.

    Attributes:
        spent: seconds of the limit.
        idle: seconds since something moved; to be set to 0 when a rank speaks.
        grace: seconds that ``idle`` may reach; None for no end.
    """

    def __init__(
        self,
        crew: RankProcesses,
        ranks: list[int],
        limit: float,
        stall: float | None = None,
        spins: bool = False,
    ) -> None:
        self._crew, self._ranks, self._spins = crew, ranks, spins
        self.limit, self.stall, self.grace = limit, stall, stall
        self.spent = self.idle = 0.0
        self._switches: list[int] = []  # of the pending ranks, at the last tick
        self._progress, self._unread_s = crew.progress(ranks), 0.0

    def tick(
        self, seconds: float, pending: Iterable[int], failed: bool
    ) -> Literal["stalled", "late"] | None:
        """Count what has passed since the last tick; return what ends the waiting.

        Args:
            seconds: since the last tick.
            pending: ranks that have not answered.
            failed: whether a rank has raised or died.
        """
        self.grace = GRACE if failed else self.stall
        if self.grace is not None:
            # Each is asked, and not only until one is busy: what a rank has used counts
            # from one question to the next.
            busy = [self._crew.is_busy(rank) for rank in pending]
            # This process may have queued, too: a tick counts as two polls at most.
            self.idle += min(seconds, 2 * POLL_S)
            if any(busy) and not self._spins:
                self.idle = 0.0
                if self.stall is not None:  # a queue for a core counts a tenth
                    used = max(self._crew.used[rank] for rank in pending)
                    seconds = max(min(seconds, used), seconds / 10)
            if not failed:  # else those that poll for the failed one would seem to move
                before = self._switches
                self._switches = [self._crew.switches(rank) for rank in pending]
                self.idle = self.idle if self._switches == before else 0.0
        self.spent += seconds
        if self.stall is None:
            self._forgive(seconds)
        if self.grace is not None and self.idle > self.grace:
            return "stalled"
        return "late" if self.spent >= self.limit else None

    def next_poll(self) -> float:
        """Return in how many seconds the next tick is due."""
        left = max(0.0, self.limit - self.spent)
        return left if self.grace is None else min(left, POLL_S)

    def _forgive(self, seconds: float) -> None:
        """Start the limit again if a rank has printed or ended a call.

        To find out takes three files per rank, so it is not done at every tick, but
        always before the limit is said to be reached.
        """
        self._unread_s += seconds
        if self._unread_s >= PROGRESS_S or self.spent >= self.limit:
            before, self._progress = self._progress, self._crew.progress(self._ranks)
            self._unread_s = 0.0
            if self._progress != before:
                self.spent = 0.0
