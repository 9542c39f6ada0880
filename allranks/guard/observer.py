"""A guard of a program that does not call it, such as a script in a rehearsal."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from allranks.guard.exchange import Exchange
from allranks.guard.guard import Guard
from allranks.guard.hooks import Hook, nothing


class Anchor(Hook):
    """A hook that does nothing but keep a guard alive as long as its model is."""

    def __init__(self, observer: "Observer") -> None:
        super().__init__(nothing)
        self.observer = observer


class Observer(Guard):
    """A guard that is told when backward ends and when an optimizer is about to step.

    It judges gradients as backward leaves them, before the program unscales or clips
    them, and it sets no hook on the optimizers, so no error of its own reaches the
    program. Nothing but the model holds it, so the program can free the model.

    Args:
        model: in DDP, or the root of what FSDP2 shards.
        optimizers: that hold some of its parameters.
        skip: what not to check, as for ``Guard``.
        patience_s: how long a check waits for a rank that does not come.
        exchange: makes what carries the messages.

    Raises:
        GuardError: as ``Guard`` does, at the start and from ``before_step``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        skip: Iterable[str] = (),
        patience_s: float = 300,
        exchange: Callable[..., Exchange] = Exchange,
    ) -> None:
        self.make_exchange = exchange
        self.anchor = None
        super().__init__(model, list(optimizers), skip=skip, patience_s=patience_s)
        self.checks.optimizer_steps.remove()
        self.anchor = model.register_forward_pre_hook(Anchor(self))

    @property
    def remarks(self) -> list[str]:
        """Return what may be on purpose, in the order in which it was found."""
        return self.checks.exchange.remarks

    def after_backward(self) -> None:
        """Keep the gradients' sketches, if the next step ends in a check."""
        if self.checks.gradients.armed:
            self.checks.gradients.keep()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Count a step, and check if one is due, before an optimizer makes it.

        Several optimizers of one model make one step, until one of them steps again.
        """
        steps = self.checks.optimizer_steps
        try:
            if not steps.stepped or id(optimizer) in steps.stepped:
                self.step()
        finally:  # after an error, too, the next optimizer belongs to the same step
            steps.stepping(optimizer)

    def allow_same_numbers(self) -> None:
        """Take equal random numbers for meant, and look for them no longer."""
        self.checks.randomness.shared = True

    def remove(self) -> None:
        """Remove all hooks."""
        super().remove()
        if self.anchor is not None:
            self.anchor.remove()
