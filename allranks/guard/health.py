"""Mistakes that a training loop makes on all ranks alike, so no comparison shows them.

It calls ``step()`` in the wrong place, trains weights that are NaN, stays in evaluation
mode, or trains another model than the guard was given.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from allranks.guard.configuration import (
    as_lines,
    attributes,
    constants,
    warn_of_other,
)
from allranks.guard.digests import fetch, local, number, sums
from allranks.guard.exchange import START, Exchange, GuardError
from allranks.guard.gradients import LocalGradients
from allranks.guard.hooks import ForwardHooks
from allranks.guard.targets import Targets

WHERE = "optimizer.step(), with no watch.step() before it"
EVALUATES = (
    "the model was in training at an earlier check and now it is in evaluation, on all "
    "ranks, and still gets gradients: was train() forgotten after a validation? No "
    "dropout and no batch statistics from here on."
)
UNREACHED = (
    "no gradient has reached the model's parameters at the last two checks: is another "
    "copy of it trained, does the forward run without gradients, or does FSDP2 wait, "
    "since set_requires_gradient_sync(True) did not come before the last backward?"
)
STUCK = (
    "no parameter has changed since the check before the last one, though there are "
    "gradients and an optimizer steps: does it hold other tensors than the model's "
    "(built before the model was sharded, copied or moved), are the new weights never "
    "copied back, or is the learning rate 0?"
)
AGAIN, PAST = 1, 2  # how gradients were made, if not by one backward of each forward
HOW = (
    "",
    "Several backward passes went through one forward pass: DDP averages in the first "
    "of them only. Add the losses up and call backward() once.",
    "backward() through the wrapper did not make it. A forward of .module, "
    "autograd.grad, and the pipeline schedules with zero bubbles that use it, go past "
    "DDP's hooks, so nobody averages. Call the wrapper; for a pipeline put fully_shard "
    "around each stage, or all_reduce these gradients before the optimizer steps.",
)


class OptimizerSteps:
    """Counts the optimizers' steps between those of the guard.

    Args:
        optimizers: of the training.
        probe: asks all ranks whether they are at this place, too; it is called once,
            and only if an optimizer steps before the first ``watch.step()``.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        probe: Callable[[str], None],
    ) -> None:
        self.probe, self.probed, self.optimizers = probe, False, optimizers
        self.stepped: set[int] = set()  # optimizers since watch.step(), by identity
        # All calls of watch.step(), and those since an optimizer stepped.
        self.num_calls, self.calls_since = 0, 0
        self.num_steps = 0  # of all optimizers
        self.resting: set[int] = set()  # parameters that may not be due, by identity
        # Parameters, and the error to raise if their optimizer steps after all.
        self.pending: tuple[set[int], Exception] | None = None
        self.handles = [
            o.register_step_pre_hook(self.stepping)
            for o in optimizers
            if hasattr(o, "register_step_pre_hook")
        ]

    def counted(self) -> None:
        """Take note that ``watch.step()`` was called."""
        again = self.handles and not self.stepped
        self.calls_since = self.calls_since + 1 if again else 1
        # If only some optimizers have stepped, it is the others' turn (a GAN), and the
        # gradients of those that have stepped may be left over.
        stepped = [o for o in self.optimizers if id(o) in self.stepped]
        rest = stepped if len(stepped) < len(self.optimizers) else []
        self.resting, self.pending = _parameters(rest), None
        self.num_calls, self.stepped = self.num_calls + 1, set()

    def stepping(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Take note that an optimizer is about to step."""
        self.stepped.add(id(optimizer))
        self.num_steps += 1
        if self.pending and self.pending[0] & _parameters([optimizer]):
            raise self.pending[1]
        if not self.num_calls and not self.probed:
            self.probed = True
            self.probe(WHERE)

    @contextmanager
    def lenient(self) -> Iterator[None]:
        """Put off an error about gradients that may not be due.

        These are the gradients of an optimizer that has just stepped, while another has
        not. In a GAN it is then the other one's turn, and these gradients will be
        zeroed. The error is raised if this optimizer steps again before the next check.
        """
        try:
            yield
        except GuardError as error:
            self.pending = self.pending or (self.resting, error)

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()
        self.handles = []


def _parameters(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    groups = [group for o in optimizers for group in o.param_groups]
    return {id(p) for group in groups for p in group["params"]}


class Report(NamedTuple):
    """What a rank tells about its own state, as whole numbers."""

    has_nan: Any = 0  # whether a trained parameter holds NaN
    guard_steps: Any = 0  # calls of watch.step() since an optimizer stepped
    unsynced: Any = 0  # whether the last forward was in no_sync()
    trains: Any = 0  # whether a module is in training
    trained: Any = 0  # whether one was at the check before
    without_gradient: Any = 0  # checks in a row that found none
    constants: Any = 0  # a hash of those of the model
    stuck: Any = 0  # checks in a row that found the weights as they were before
    how: Any = 0  # gradients were made: 0, AGAIN or PAST


class Health:
    """Looks at each rank's own state, and has all ranks report the same about it."""

    def __init__(
        self,
        exchange: Exchange,
        targets: Targets,
        gradients: LocalGradients,
        optimizer_steps: OptimizerSteps,
        forward: ForwardHooks,
    ) -> None:
        self.exchange, self.targets = exchange, targets
        self.gradients, self.forward = gradients, forward
        self.optimizer_steps = optimizer_steps
        self.trained = False  # whether it was in training at the check before
        self.nan = self.hint = ""
        self.without_gradient = 0  # checks in a row that found none
        self.stuck = 0  # checks in a row that found the weights as they were before
        # Whether the weights have changed; then, or if nobody tells of steps, rest.
        self.moved = not optimizer_steps.handles
        self.last = 0, 0  # a digest of the weights; the optimizers' steps so far
        self.constants = constants(attributes(targets.model))

    def numbers(
        self,
        where: str,
        num_steps: int,
        sketches: list[torch.Tensor],
        weights: int,
    ) -> list[int]:
        """Return a ``Report``, for the exchange.

        Args:
            where: what this check is called.
            num_steps: how many steps there were; constants are compared in the first
                ones only.
            sketches: of gradients, on the CPU. If these are finite, so are the weights.
            weights: what ``weights`` returned, as a number.
        """
        model = self.targets.model
        if where == START:
            return [*Report()]
        suspect = any(not x.isfinite().all() for x in sketches)
        self.nan = self._first_nan() if suspect or not sketches else ""
        # The wrapper's own flag is no proof: eval() may be called on what it wraps.
        # A child may be false: a compiled one has no len(), and an empty list has 0.
        leaves = [m for m in model.modules() if not list(m.children())]
        trained, self.trained = self.trained, any(m.training for m in leaves)
        self._count_without_gradient()
        self._count_stuck(weights, sketches, suspect)
        text = self._constants() if num_steps <= 8 else ""
        report = Report(
            has_nan=int(bool(self.nan)),
            guard_steps=self.optimizer_steps.calls_since,
            unsynced=int(not getattr(model, "require_forward_param_sync", True)),
            trains=int(self.trained),
            trained=int(trained),
            without_gradient=self.without_gradient,
            constants=number(text),
            stuck=self.stuck,
            how=self._how(),
        )
        return [*report]

    def _how(self) -> int:
        """Tell whether gradients were made other than by one backward per forward."""
        passes = max(self.gradients.passes.values(), default=0)
        if 0 < len(self.forward.seen) < passes:
            return AGAIN
        return PAST if self.gradients.bypassed() else 0

    def _count_without_gradient(self) -> None:
        """Count the checks in a row at which no parameter has a gradient."""
        looked = "gradients" not in self.targets.skip and self.gradients.armed
        # FSDP2 may have made gradients, and keeps them until it synchronizes.
        parameters = self.targets.parameters().values()
        waits = self.gradients.units and all(p.grad is None for p in parameters)
        none = looked and (waits or not self.gradients.reached())
        self.without_gradient = self.without_gradient + 1 if none else 0

    def weights(self) -> int | list[torch.Tensor]:
        """Return a digest of this rank's weights; 0 if they have moved already."""
        if self.moved:
            return 0
        parameters = self.targets.parameters().values()
        return sums([local(p) for p in parameters if p.requires_grad])

    def _count_stuck(
        self, weights: int, sketches: list[torch.Tensor], suspect: bool
    ) -> None:
        """Count the checks in a row that found no weight changed by optimizer steps."""
        (last, before), steps = self.last, self.optimizer_steps.num_steps
        if not weights or suspect or (last and steps == before):
            return  # a step was skipped for an overflow, or there was none
        self.last = weights, steps
        self.moved = self.moved or last not in (0, weights)
        trains = any(x[..., 2].any() for x in sketches)
        self.stuck = self.stuck + 1 if trains and weights == last else 0

    def _constants(self) -> str:
        """Write those of the model's constants that are unchanged since the start."""
        now = constants(attributes(self.targets.model))
        return as_lines({n: v for n, v in self.constants.items() if now.get(n) == v})

    def _first_nan(self) -> str:
        """Name a trained parameter that holds NaN; "" if there is none."""
        num_nan = {
            name: local(p).isnan().sum()
            for name, p in self.targets.parameters().items()
            if p.requires_grad and p.is_floating_point() and not p.is_meta
        }
        counts = fetch(list(num_nan.values()))
        bad = [name for name, count in zip(num_nan, counts, strict=True) if count]
        if not bad:
            return ""
        more = f" and {len(bad) - 1} more of {len(num_nan)}" if bad[1:] else ""
        return f"{bad[0]}{more}"

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Raise if weights are NaN; warn about what may be on purpose."""
        exchange, skip = self.exchange, self.targets.skip
        ranks = Report(*zip(*rows, strict=True))  # each field for all ranks: (W,)
        if any(ranks.has_nan):
            bad = [bool(nan) for nan in ranks.has_nan]
            who, which = exchange.first_of(bad, self.nan)
            raise GuardError(
                f"{where}: parameters are NaN on {who}: {which}. The training is over: "
                "every later result is NaN too. Go back to a checkpoint; look at the "
                "loss, the rate and the data of the steps before."
            )
        cause = hint(max(ranks.guard_steps), any(ranks.unsynced))
        self.hint = cause or HOW[max(ranks.how)]
        if all(ranks.trained) and not any(ranks.trains) and "modes" not in skip:
            exchange.warn(EVALUATES)
        # At exactly the second check, and on all ranks: it is no news at the third.
        if all(count == 2 for count in ranks.without_gradient):
            exchange.warn(UNREACHED)
        if all(count == 2 for count in ranks.stuck):
            exchange.warn(STUCK)
        if len(set(ranks.constants)) > 1 and "modes" not in skip:
            warn_of_other(exchange, self._constants())


def hint(again: int, unsynced: bool) -> str:
    """Return the likely cause of a gradient that is not the mean; "" if none is known.

    Args:
        again: calls of the guard's step() since the last step of an optimizer.
        unsynced: whether the last forward was in no_sync().
    """
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
