"""One check: everything that the ranks compare, and the one message that carries it."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from allranks.guard import start
from allranks.guard.buffers import Buffers
from allranks.guard.checkpoints import Checkpoints
from allranks.guard.data import DataChecks
from allranks.guard.digests import number, settle
from allranks.guard.exchange import Exchange, GuardError
from allranks.guard.gradients import (
    BY_HAND,
    DIVIDED,
    LocalGradients,
    is_close,
    judge,
)
from allranks.guard.hooks import CLIPS, ForwardHooks, ProgramHooks
from allranks.guard.loop import Health, OptimizerSteps
from allranks.guard.loss_inputs import LossInputs
from allranks.guard.randomness import Randomness
from allranks.guard.replicas import Replicas
from allranks.guard.settings import Settings
from allranks.guard.training import KINDS, OUTSIDE, Training
from allranks.guard.wrappers import (
    JOIN,
    NOT_THE_MEAN,
    ddp_group,
    is_compiled,
    joining,
    refuse_unlike,
    share,
    strange,
    wrapped,
)

START = "the start"
JOINED = "after Join"
NEVER = 1 << 30  # steps; a scale that grows only after so many does not grow
GROWTH = (
    "a GradScaler inside of Join: a rank with more batches calls update() more often, "
    "so its scale grows earlier, and from then on DDP averages gradients of different "
    "scales. Keep it from growing (set_growth_interval(1 << 30)), or give all ranks "
    "equally many batches."
)
NOT_TOLD = (
    "data and tensor parallelism meet, and which ranks share a batch "
    "cannot be told: data are not checked. Pass the process group of the "
    'data\'s axis, such as group=mesh["data"].get_group().'
)


def joined_steps(where: str, steps: list[int]) -> str:
    """Say how many steps the ranks made inside of Join, if not equally many."""
    if where != JOINED or len(set(steps)) == 1:
        return ""
    return f"Inside of Join the ranks made {', '.join(map(str, steps))} steps. "


class Checks:
    """What a guard compares, and how; ``Guard`` decides when.

    Args:
        training: what to look at.
        group: the ranks that hold the same part of the model; None takes DDP's.
        tolerance: for gradients, relative to their norm.
        patience_s: how long a check waits for a rank that does not come.
        make_exchange: makes what carries the messages.
    """

    def __init__(
        self,
        training: Training,
        group: "dist.ProcessGroup | None",
        tolerance: float,
        patience_s: float,
        make_exchange: Callable[..., Exchange],
    ) -> None:
        self.training, self.tolerance = training, tolerance
        model, device = training.model, training.device
        group = group or ddp_group(model)
        exchange = self.exchange = make_exchange(group, device, patience_s)
        self.buffers = Buffers(exchange, model)
        self.replicas = Replicas(exchange, training, self.buffers)
        self.gradients = LocalGradients(model, training.parameters())
        shares = self._shares()
        known = all(shares)
        self.data = DataChecks(exchange, shares if known else None, model)
        one_each = self.data.num_shares == len(shares)  # batches are each rank's own
        shared = not one_each or "randomness" in training.skip
        self.random = Randomness(exchange, device, shared)
        self.forward = ForwardHooks(model, device, self.random)
        self.hooks = ProgramHooks()
        self.settings = Settings(exchange, training, self.forward, self.hooks)
        self.optimizer_steps = OptimizerSteps(training.optimizers, self._probe)
        self.health = Health(
            exchange, training, self.gradients, self.optimizer_steps, self.forward
        )
        self.loss = LossInputs(exchange, model, self.replicas, shared)
        compiled = any(map(is_compiled, model.modules()))
        alone = exchange.size == 1 or not one_each
        self.loss.off = alone or compiled or "loss" in training.skip
        self.ratio = 1.0  # of the gradients to the mean, at the check before
        self.checkpoints = Checkpoints(exchange, training, self.buffers, self.settings)
        if not known and "data" not in training.skip:
            exchange.warn(NOT_TOLD)

    def _shares(self) -> list[int]:
        """Return a number for each rank's share of the data; 0 where it is unknown."""
        rank = dist.get_rank() if self.exchange.group else 0
        own = share(self.training.model, self.gradients.units, rank)
        rows = self.exchange.integers("the start: who shares a batch", [own])
        return [row[0] for row in rows]

    def _probe(self, where: str) -> None:
        if self.exchange.size > 1 and not joining(self.training.model):
            self.exchange.integers(where, values=[])  # the place is all that matters

    def begin(self, world_size: int | None) -> None:
        """Check what never changes, and the state in which the training begins."""
        start.begin(self.exchange, self.training, START, world_size)
        kinds = OUTSIDE, "parameter", "attribute"
        self.compare(START, num_steps=0, kinds=kinds)

    def everything(self, num_steps: int) -> None:
        """Check parameters, buffers, optimizer, gradients, batches, randomness."""
        joined = joining(self.training.model)
        where = JOINED if joined else f"step {num_steps}"
        stage = self.settings.stage()
        ready = self.gradients.armed and stage is not None
        sketches = self.gradients.sketch_all() if ready else []
        found = self.compare(where, num_steps, KINDS, sketches)
        if found and not joined and not self.replicas.later:
            self._gradients(where, stage == "scaled", found)

    def compare(
        self,
        where: str,
        num_steps: int,
        kinds: Iterable[str],
        sketches: Sequence[torch.Tensor] = (),
    ) -> list[torch.Tensor]:
        """Send one message with everything, and judge it in the same way on every rank.

        Args:
            where: what to call this check, such as "step 8".
            num_steps: how many steps the training has made.
            kinds: of the tensors to compare.
            sketches: of gradients, to bring to the CPU in the same copy.

        Returns:
            The sketches on the CPU; none unless every rank has some.

        Raises:
            GuardError: on every rank, for the first invariant that does not hold.
        """
        training, exchange = self.training, self.exchange
        tensors = training.tensors(kinds, self.buffers)
        loose, why = self.settings.loose(), strange(training.model)
        due = tensors.get("gradient", {})
        late = {name: due.pop(name) for name in self._resting(due)}
        rows = [self.replicas.numbers(found) for found in (*tensors.values(), late)]
        weights = self.health.weights() if sketches else 0
        (*rows, weights), host = settle([*rows, [weights]], [*loose, *sketches])
        self.settings.land(host[: len(loose)])
        sketches = host[len(loose) :]
        parts = [
            self.settings.numbers(where),
            self.data.numbers(),
            self.random.numbers(),
            [number(why), int(bool(sketches)), num_steps],
            self.health.numbers(where, num_steps, sketches, weights[0]),
            self.loss.numbers(),
        ]
        table = exchange.parts(where, [*parts, *rows])
        settings, data, random, hooks, health, loss = (
            [row[i] for row in table] for i in range(len(parts))
        )
        several = exchange.size > 1
        unequal = self.settings.unequal = joined_steps(where, [r[2] for r in hooks])
        if several:
            self.settings.judge(where, settings)
            refuse_unlike(exchange, where, why, [row[0] for row in hooks])
            self.data.judge(where, data)
        self.health.judge(where, health)
        if not several:
            return sketches
        self.replicas.hint, self.replicas.unequal = self.health.hint, unequal
        digests = [row[len(parts) :] for row in table]
        self.replicas.compare(where, tensors, [row[:-1] for row in digests])
        with self.optimizer_steps.lenient():
            last = [row[-1:] for row in digests]
            self.replicas.compare(where, {"gradient": late}, last)
        self.random.judge(where, random)
        self.loss.judge(where, loss)
        if self.hooks.clips:
            exchange.warn(CLIPS.format(min(self.hooks.clips)))
        self.buffers.checked()
        return sketches if all(row[1] for row in hooks) else []

    def _gradients(
        self, where: str, scaled: bool, sketches: list[torch.Tensor]
    ) -> None:
        """Compare gradients with the mean of the local ones; only warn about a hook."""
        model = self.training.model
        why = strange(model)  # which ``refuse_unlike`` has found equal on all ranks
        verdict = partial(
            judge,
            self.exchange,
            where,
            factor=self.settings.factor(),
            scaled=scaled or bool(why),
            tolerance=self.tolerance,
            hint=self.health.hint,
        )
        gradients = self.gradients.gather(self.exchange, where, sketches)
        late = self._resting(one.name for one in gradients)
        past, self.ratio = self.ratio, 1.0
        try:
            self.ratio = verdict([one for one in gradients if one.name not in late])
            with self.optimizer_steps.lenient():
                verdict([one for one in gradients if one.name in late])
        except GuardError as error:
            summed = is_close(error.ratio, self.exchange.size)
            if why:
                factor = self._factor(error.ratio)
                self.exchange.warn(f"{NOT_THE_MEAN.format(why)}{factor}")
            elif summed and not wrapped(model):
                self.exchange.warn(BY_HAND)
            else:
                raise
        # A gradient that is clipped is another part of itself at each check.
        if all(is_close(r, 1 / self.exchange.size) for r in (past, self.ratio)):
            self.exchange.warn(DIVIDED.format(self.ratio))

    def _factor(self, ratio: float) -> str:
        """Say by what a communication hook's gradients differ from the mean."""
        if not ratio:
            return ""
        said = f" It leaves {ratio:.4g} times their mean"
        if is_close(ratio, 1 / self.exchange.size):
            return f"{said}: it divides by the number of ranks twice."
        if is_close(ratio, self.exchange.size):
            return f"{said}, which is the sum: it does not divide."
        return f"{said}."

    def _resting(self, names: Iterable[str]) -> list[str]:
        """Return the names whose gradients may not be due; ``lenient`` says why."""
        resting = self.optimizer_steps.resting
        found = self.training.parameters() if resting else {}
        return [name for name in names if id(found.get(name)) in resting]

    def joins(self) -> bool:
        """Tell whether ranks make unequal steps, so that none may wait for another."""
        if not joining(self.training.model):
            return False
        self.exchange.warn(JOIN)
        scaler = self.training.scaler
        scaled = scaler is not None and scaler.is_enabled()
        if scaled and scaler.get_growth_interval() < NEVER:
            self.exchange.warn(GROWTH)
        return True

    def arm(self, due: bool) -> None:
        """Set the hooks if the next step ends in a check, and remove them if not."""
        training = self.training
        if not due or (self.exchange.size == 1 and not training.scaler):
            self.disarm()
            return
        if "gradients" not in training.skip and not self.data.one_model:
            self.gradients.arm()
        self.forward.arm()
        self.hooks.arm(training.model, training.parameters())

    def disarm(self) -> None:
        """Remove every hook from the model."""
        self.gradients.disarm()
        self.forward.disarm()
        self.hooks.disarm()

    def close(self) -> None:
        """Remove all hooks, and release the process group."""
        self.disarm()
        self.optimizer_steps.remove()
        self.exchange.close()
