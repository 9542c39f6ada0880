"""Where the loop calls ``step()``, seen from the optimizer: told when that is wrong."""

from collections.abc import Callable
from contextlib import contextmanager

from .exchange import GuardError

WHERE = "optimizer.step(), with no watch.step() before it"


class Calls:
    """Counts optimizer steps between the guard's own.

    Args:
        probe: asks all ranks whether they are here too; called once, and only if an
            optimizer steps before the first ``watch.step()``.
    """

    def __init__(self, optimizers: list, probe: Callable[[str], None]):
        self.probe, self.settled, self.optimizers = probe, False, optimizers
        self.since: set[int] = set()  # who stepped after the last watch.step()
        self.steps, self.again = 0, 0  # watch.step(): all, and without optimizer's
        self.resting: set[int] = set()  # parameters that may not be due, by identity
        self.pending: tuple[set[int], Exception] | None = None  # said if they step
        self.handles = [
            o.register_step_pre_hook(self._stepping)
            for o in optimizers
            if hasattr(o, "register_step_pre_hook")
        ]

    def counted(self) -> None:
        """Take note that ``watch.step()`` was called."""
        self.again = 1 if self.since or not self.handles else self.again + 1
        stepped = [o for o in self.optimizers if id(o) in self.since]
        rest = stepped if len(stepped) < len(self.optimizers) else []
        self.resting, self.pending = _parameters(rest), None
        self.steps, self.since = self.steps + 1, set()

    def _stepping(self, optimizer, _args, _kwargs) -> None:
        self.since.add(id(optimizer))
        if self.pending and self.pending[0] & _parameters([optimizer]):
            raise self.pending[1]
        if not self.steps and not self.settled:
            self.settled = True
            self.probe(WHERE)

    @contextmanager
    def lenient(self):
        """Judge gradients of parameters whose optimizer has stepped, and not another.

        In a GAN it is the other one's turn, and these gradients will be zeroed. What is
        wrong with them is said once this optimizer steps again before the next check.
        """
        try:
            yield
        except GuardError as error:
            self.pending = self.pending or (self.resting, error)

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self.handles:
            handle.remove()
        self.handles = []


def _parameters(optimizers: list) -> set[int]:
    groups = [group for o in optimizers for group in o.param_groups]
    return {id(p) for group in groups for p in group["params"]}


def hint(again: int, unsynced: bool) -> str:
    """Say what a gradient that is not the mean may come from, by where step() was."""
    if again > 1:
        return (
            f"The guard's step() was called {again} times since the last "
            "optimizer.step(): call it once for each, after the last backward() that "
            "adds up."
        )
    if unsynced:
        return (
            "The last forward was inside of no_sync(): if more passes follow before "
            "optimizer.step(), call watch.step() after the last one only; if not, the "
            "last pass must be outside of it."
        )
    return ""
