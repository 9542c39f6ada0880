"""The guard itself: what a training calls, when it checks, and what a check is.

``Guard`` decides when a check is due. ``Checks`` builds all parts of a check, and sends
the one message that carries what they compare.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import nn

from allranks.guard import metrics, preflight
from allranks.guard.agreement import Agreement
from allranks.guard.buffers import Buffers
from allranks.guard.checkpoints import Checkpoints
from allranks.guard.data import DataChecks
from allranks.guard.datasets import leaves
from allranks.guard.digests import number, settle
from allranks.guard.exchange import START, Exchange, GuardError
from allranks.guard.gradients import (
    BY_HAND,
    DIVIDED,
    LocalGradients,
    is_close,
    judge,
)
from allranks.guard.health import Health, OptimizerSteps
from allranks.guard.hooks import CLIPS, ForwardHooks, ProgramHooks
from allranks.guard.loss import LossInputs
from allranks.guard.randomness import Randomness
from allranks.guard.replicas import Replicas
from allranks.guard.targets import KINDS, OUTSIDE, Optimizers, Targets, begin
from allranks.guard.wrappers import (
    JOIN,
    NOT_THE_MEAN,
    ddp_group,
    is_compiled,
    joining,
    other_reduction,
    refuse_unlike,
    share,
    wrapped,
)

JOINED = "after Join"
NEVER = 1 << 30  # steps; a scale that grows only after so many does not grow
GROWTH = (
    "a GradScaler inside of Join: a rank with more batches calls update() more often, "
    "so its scale grows earlier, and from then on DDP averages gradients of different "
    "scales. Keep it from growing (set_growth_interval(1 << 30)), or give all ranks "
    "equally many batches."
)
UNKNOWN_SHARES = (
    "with data and tensor parallelism combined, the guard cannot tell which ranks "
    "share a batch, so it does not check the data. Pass the process group of the "
    'data\'s axis, such as group=mesh["data"].get_group().'
)

END = object()


class Guard:
    """Checks, every so many steps, what must hold when ranks train one model.

    Three lines in a training loop::

        watch = Guard(model, optimizer)  # after DDP(...) or fully_shard(...)
        for x, y in watch.epoch(loader, epoch):
            loss_of(model, x, y).backward()
            watch.step()  # after backward, once per step
            optimizer.step()

    Every rank calls each of them. If something is wrong, GuardError is raised with the
    same sentence on every rank. The guard changes nothing in the training, and it
    touches no random generator.

    Args:
        model: as it is trained: wrapped by DDP, sharded by fully_shard or
            parallelize_module, or bare if you synchronize by hand. With None there is
            no model to check.
        optimizer: one, or a list of them; None leaves them out.
        every: steps between checks. The first checks are at steps 1, 2, 4, 8 …
        scaler: a GradScaler, to compare its scale and to know its factor.
        world_size: how many ranks there should be; None accepts any number.
        group: the ranks that hold the same part of the model, if not all of them;
            None takes DDP's.
        ignore: prefixes of the names of parameters that may differ between ranks.
        skip: what not to check, of "parameters", "buffers", "optimizer", "gradients",
            "data", "devices", "loss", "modes" and "randomness".
        tolerance: for gradients, relative to their norm; the default allows for the
            rounding of 16 bits.
        patience_s: seconds that a check waits for a rank that does not come.

    Raises:
        ValueError: if ``every`` is below 1, a word in ``skip`` is unknown, or this rank
            is not in ``group``.
        GuardError: if something is wrong at the start already.
    """

    make_exchange: Callable[..., Exchange] = Exchange  # carries its messages

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: Optimizers = None,
        *,
        every: int = 100,
        scaler: torch.amp.GradScaler | None = None,
        world_size: int | None = None,
        group: "dist.ProcessGroup | None" = None,
        ignore: str | Iterable[str] = (),
        skip: str | Iterable[str] = (),
        tolerance: float = 0.05,
        patience_s: float = 300,
    ) -> None:
        if every < 1:
            raise ValueError(f"every={every}: steps between checks must be 1 or more")
        targets = Targets(model, optimizer, scaler, ignore, skip)
        self.checks = Checks(targets, group, tolerance, patience_s, self.make_exchange)
        self.every, self.steps = every, 0
        self.checked = -1  # the step of the last check
        try:
            self.checks.begin(world_size)
        except BaseException:
            self.remove()
            raise
        self.checks.arm(self._due(1))

    def _due(self, step: int) -> bool:
        """Tell whether a step ends in a check."""
        return step % self.every == 0 or (step < self.every and step & (step - 1) == 0)

    def epoch(
        self, loader: Iterable[Any], epoch: int, global_batch: int | None = None
    ) -> Iterator[Any]:
        """Yield the loader's batches; check counts, shares, order and randomness.

        A loader without a length costs one small message per step: the ranks agree that
        each of them has another batch before any of them starts a step with it.

        Args:
            loader: a DataLoader of the training, or any iterable of batches.
            epoch: its number, for the messages.
            global_batch: samples per step on all ranks, if you want it checked.
        """
        checks, data, loss = self.checks, self.checks.data, self.checks.loss
        if "data" in checks.targets.skip or checks.joins():
            yield from loader
            return
        where = f"the start of epoch {epoch}"
        length = data.begin(where, loader)["length"]
        batches = loss.iterator = iter(loader)
        for count in itertools.count(1):
            due = self._due(self.steps + 1)
            # The first fetch draws the epoch's order, which ranks may well draw alike.
            with checks.randomness.fetch(due and count > 1), loss.record(due):
                batch = next(batches, END)
            if length < 0:
                at = f"batch {count} of epoch {epoch}"
                data.vote(at, batch is not END, count - 1)
            if batch is END:
                break
            if count == 1 and global_batch is not None:
                data.global_batch(where, batch, global_batch)
            data.seen(batch)
            if due:
                checks.randomness.note(start=count == 1)
            with loss.record(due, leaves(batch)):
                yield batch
        where = f"the end of epoch {epoch}"
        data.end(where, count - 1)
        # The last check is a while ago (half as many steps as before it), so an epoch
        # that ends between two checks is not validated or saved unseen.
        if 2 * self.steps >= 3 * self.checked > 0:
            checks.compare(where, self.steps, (OUTSIDE, "parameter"))

    def step(self) -> None:
        """Count a step, and check if a check is due.

        Call it once per optimizer step, after backward and before the optimizer, at the
        same place on every rank.
        """
        self.steps += 1
        self.checks.loss.tape.stop()
        self.checks.optimizer_steps.counted()
        if self._due(self.steps) and not self.checks.joins():
            self.check()
        self.checks.data.num_batches = 0
        self.checks.arm(self._due(self.steps + 1))

    def check(self) -> None:
        """Check parameters, buffers, optimizer, gradients, batches, randomness now."""
        self.checked = self.steps
        self.checks.everything(self.steps)

    def preflight(
        self,
        loss: preflight.Loss,
        *batches: Any,
        backward: Callable[[list[Any]], None] | None = None,
        tolerance: float = 0.01,
    ) -> None:
        """Check that W ranks make the gradient that one process makes on the union.

        Call it before the first step. It leaves random states, buffers and gradients
        as they were, and it runs in evaluation mode, without dropout and without batch
        statistics.

        Args:
            loss: ``loss(model, batch)``, the mean loss as one process would write it.
            *batches: this rank's batch, or all batches that add up to one step.
            backward: ``backward(batches)``, which makes gradients as your training
                does; the default calls ``loss(model, batch).backward()``.
            tolerance: relative error that counts as rounding; take 0.05 for 16 bits.
        """
        checks = self.checks
        checks.disarm()  # its passes are no part of a step
        preflight.run(
            checks.exchange, checks.targets, loss, batches, backward, tolerance
        )
        checks.arm(self._due(self.steps + 1))

    def mark(self) -> dict[str, Any]:
        """Describe the state, in numbers and strings, to be saved in the checkpoint."""
        return self.checks.checkpoints.mark(self.steps)

    def resumed(self, mark: dict[str, Any]) -> None:
        """Check that weights, optimizer and settings are those of a ``mark``.

        Call it when everything is loaded. The guard goes on counting from the step at
        which the mark was made.
        """
        self.checks.checkpoints.compare(mark)
        self.steps = mark["steps"]
        self.checks.arm(self._due(self.steps + 1))

    def same(self, **values: Any) -> None:
        """Check that numbers, tensors, settings or modules are equal on all ranks."""
        metrics.same(self.checks.exchange, self.checks.replicas, values)

    def apart(self, **values: Any) -> None:
        """Check that each rank has values of its own, such as its seed."""
        metrics.apart(self.checks.exchange, values)

    def mean(self, total: float, count: float) -> float:
        """Divide the sum of all ranks' totals by the sum of their counts."""
        return metrics.mean(self.checks.exchange, total, count)[0]

    def metric(
        self, value: float, total: float, count: float, samples: int | None = None
    ) -> None:
        """Check a reported mean against all ranks' totals and counts.

        It knows means only, such as a loss or an accuracy; for an AUC, an F1 score or
        a median there is ``metric_of``.

        Args:
            value: the mean that is reported.
            total: this rank's sum over its items.
            count: this rank's number of items.
            samples: how many the data set has, if each must be counted exactly once.
        """
        metrics.check(self.checks.exchange, value, total, count, samples)

    def metric_of(
        self,
        value: float,
        function: Callable[..., Any],
        *parts: Any,
        samples: int | None = None,
    ) -> None:
        """Check a reported value against a function of all ranks' samples at once.

        Every rank gets the samples of all, so that the function is computed once, as
        by one process.

        Args:
            value: what is reported.
            function: such as an AUC; it gets as many arguments as there are ``parts``.
            *parts: this rank's tensors, such as scores and labels, with the samples
                along the first dim.
            samples: how many the data set has, if each must be counted exactly once.
        """
        metrics.check_of(self.checks.exchange, value, function, parts, samples)

    def remove(self) -> None:
        """Remove the guard's hooks and its group; a second call does nothing."""
        self.checks.close()

    def __enter__(self) -> Self:
        """Return the guard, which is removed at the end of the block."""
        return self

    def __exit__(self, *_error: object) -> None:
        self.remove()


def joined_steps(where: str, steps: list[int]) -> str:
    """Say how many steps the ranks made inside of Join, if not equally many."""
    if where != JOINED or len(set(steps)) == 1:
        return ""
    return f"Inside of Join the ranks made {', '.join(map(str, steps))} steps. "


class Message(NamedTuple):
    """What a rank sends in a check: numbers for each part, which judges its own.

    Once the ranks have exchanged it, each field is a list of what all ranks sent.
    """

    agreement: Sequence[Any]
    data: Sequence[Any]
    randomness: Sequence[Any]
    step: Sequence[Any]  # hash of how gradients are reduced, has sketches, num_steps
    health: Sequence[Any]
    loss: Sequence[Any]


class Checks:
    """What a guard compares, and how; ``Guard`` decides when.

    Args:
        targets: what to look at.
        group: the ranks that hold the same part of the model; None takes DDP's.
        tolerance: for gradients, relative to their norm.
        patience_s: how long a check waits for a rank that does not come.
        make_exchange: makes what carries the messages.
    """

    def __init__(
        self,
        targets: Targets,
        group: "dist.ProcessGroup | None",
        tolerance: float,
        patience_s: float,
        make_exchange: Callable[..., Exchange],
    ) -> None:
        self.targets, self.tolerance = targets, tolerance
        model, device = targets.model, targets.device
        group = group or ddp_group(model)
        exchange = self.exchange = make_exchange(group, device, patience_s)
        self.buffers = Buffers(exchange, model)
        self.replicas = Replicas(exchange, targets, self.buffers)
        self.gradients = LocalGradients(model, targets.parameters())
        shares = self._shares()
        known = all(shares)
        self.data = DataChecks(exchange, shares if known else None, model)
        one_each = self.data.num_shares == len(shares)  # batches are each rank's own
        shared = not one_each or "randomness" in targets.skip
        self.randomness = Randomness(exchange, device, shared)
        self.forward = ForwardHooks(model, device, self.randomness)
        self.hooks = ProgramHooks()
        self.agreement = Agreement(exchange, targets, self.forward, self.hooks)
        self.optimizer_steps = OptimizerSteps(targets.optimizers, self._probe)
        self.health = Health(
            exchange, targets, self.gradients, self.optimizer_steps, self.forward
        )
        self.loss = LossInputs(exchange, model, self.replicas, shared)
        compiled = any(map(is_compiled, model.modules()))
        alone = exchange.size == 1 or not one_each
        self.loss.off = alone or compiled or "loss" in targets.skip
        self.ratio = 1.0  # of the gradients to the mean, at the check before
        self.checkpoints = Checkpoints(exchange, targets, self.buffers, self.agreement)
        if not known and "data" not in targets.skip:
            exchange.warn(UNKNOWN_SHARES)

    def _shares(self) -> list[int]:
        """Return a number for each rank's share of the data; 0 where it is unknown."""
        # Without a device mesh, each rank has a share of its own: its global rank.
        rank = dist.get_rank() if self.exchange.group else 0
        own = share(self.targets.model, self.gradients.units, rank)
        rows = self.exchange.integers(f"{START}: who shares a batch", [own])
        return [row[0] for row in rows]

    def _probe(self, where: str) -> None:
        if self.exchange.size > 1 and not joining(self.targets.model):
            self.exchange.integers(where, values=[])  # the place is all that matters

    def begin(self, world_size: int | None) -> None:
        """Check what never changes, and the state in which the training begins."""
        begin(self.exchange, self.targets, world_size)
        kinds = OUTSIDE, "parameter", "attribute"
        self.compare(START, num_steps=0, kinds=kinds)

    def everything(self, num_steps: int) -> None:
        """Check parameters, buffers, optimizer, gradients, batches, randomness."""
        joined = joining(self.targets.model)
        where = JOINED if joined else f"step {num_steps}"
        # None if some optimizers are unscaled and others not: there is no one factor.
        stage = self.agreement.stage()
        ready = self.gradients.armed and stage is not None
        sketches = self.gradients.sketch_all() if ready else []
        sketches = self.compare(where, num_steps, KINDS, sketches)
        if sketches and not joined and not self.replicas.later:
            self._compare_with_mean(where, stage == "scaled", sketches)

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
        targets, exchange = self.targets, self.exchange
        # Every rank does all of this in this order, whatever it finds, because each
        # exchange has to meet that of the others.
        tensors = targets.tensors(kinds, self.buffers)
        reduction = other_reduction(targets.model)
        gradients = tensors.get("gradient", {})
        resting = {name: gradients.pop(name) for name in self._resting(gradients)}
        # Whatever lies on another device comes here in one copy, which waits for it
        # once: options, sketches, and digests of tensors and weights.
        options = self.agreement.tensors()
        digests = [self.replicas.numbers(x) for x in (*tensors.values(), resting)]
        weights = self.health.weights() if sketches else 0
        (*digests, weights), host = settle([*digests, [weights]], [*options, *sketches])
        self.agreement.keep(host[: len(options)])
        sketches = host[len(options) :]
        own = Message(
            self.agreement.numbers(where),
            self.data.numbers(),
            self.randomness.numbers(),
            [number(reduction), int(bool(sketches)), num_steps],
            self.health.numbers(where, num_steps, sketches, weights[0]),
            self.loss.numbers(),
        )
        table = exchange.parts(where, [*own, *digests])
        message = Message(*zip(*(row[: len(own)] for row in table), strict=True))
        digests = [row[len(own) :] for row in table]
        if exchange.size == 1:
            self.health.judge(where, message.health)
            return sketches
        self._judge(where, message, reduction)
        self.replicas.compare(where, tensors, [row[:-1] for row in digests])
        with self.optimizer_steps.lenient():
            last = [row[-1:] for row in digests]
            self.replicas.compare(where, {"gradient": resting}, last)
        self.randomness.judge(where, message.randomness)
        self.loss.judge(where, message.loss)
        if self.hooks.clips:
            exchange.warn(CLIPS.format(min(self.hooks.clips)))
        self.buffers.checked()
        return sketches if all(sent for _, sent, _ in message.step) else []

    def _judge(self, where: str, message: Message, reduction: str) -> None:
        """Judge what explains a tensor that differs, before the tensors themselves."""
        unequal = joined_steps(where, [steps for *_, steps in message.step])
        self.agreement.joined_steps = unequal
        self.agreement.judge(where, message.agreement)
        hashes = [hashed for hashed, *_ in message.step]
        refuse_unlike(self.exchange, where, reduction, hashes)
        self.data.judge(where, message.data)
        self.health.judge(where, message.health)
        self.replicas.hint, self.replicas.joined_steps = self.health.hint, unequal

    def _compare_with_mean(
        self, where: str, scaled: bool, sketches: list[torch.Tensor]
    ) -> None:
        """Compare gradients with the mean of the local ones; only warn about a hook."""
        # Equal on all ranks, as ``refuse_unlike`` has seen to.
        reduction = other_reduction(self.targets.model)
        verdict = partial(
            judge,
            self.exchange,
            where,
            factor=self.agreement.factor(),
            scaled=scaled or bool(reduction),
            tolerance=self.tolerance,
            hint=self.health.hint,
        )
        gradients = self.gradients.gather(self.exchange, where, sketches)
        resting = self._resting(one.name for one in gradients)
        past, self.ratio = self.ratio, 1.0
        try:
            self.ratio = verdict([one for one in gradients if one.name not in resting])
            with self.optimizer_steps.lenient():
                verdict([one for one in gradients if one.name in resting])
        except GuardError as error:
            summed = is_close(error.ratio, self.exchange.size)
            if reduction:
                factor = self._factor(error.ratio)
                self.exchange.warn(f"{NOT_THE_MEAN.format(reduction)}{factor}")
            elif summed and not wrapped(self.targets.model):
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
        parameters = self.targets.parameters() if resting else {}
        return [name for name in names if id(parameters.get(name)) in resting]

    def joins(self) -> bool:
        """Tell whether ranks make unequal steps, so that none may wait for another."""
        if not joining(self.targets.model):
            return False
        self.exchange.warn(JOIN)
        scaler = self.targets.scaler
        scaled = scaler is not None and scaler.is_enabled()
        if scaled and scaler.get_growth_interval() < NEVER:
            self.exchange.warn(GROWTH)
        return True

    def arm(self, due: bool) -> None:
        """Set the hooks if the next step ends in a check, and remove them if not."""
        targets = self.targets
        if not due or (self.exchange.size == 1 and not targets.scaler):
            self.disarm()
            return
        if "gradients" not in targets.skip and not self.data.one_model:
            self.gradients.arm()
        self.forward.arm()
        self.hooks.arm(targets.model, targets.parameters())

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
