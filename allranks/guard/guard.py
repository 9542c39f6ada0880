"""The guard itself: what a training calls, and when it checks."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn

from allranks.guard import metrics, preflight
from allranks.guard.checks import Checks
from allranks.guard.exchange import Exchange
from allranks.guard.loaders import leaves
from allranks.guard.training import OUTSIDE, Optimizers, Training

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
            parallelize_module, or bare if you synchronise by hand. With None there is
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
        training = Training(model, optimizer, scaler, ignore, skip)
        self.checks = Checks(training, group, tolerance, patience_s, self.make_exchange)
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
        if "data" in checks.training.skip or checks.joins():
            yield from loader
            return
        where = f"the start of epoch {epoch}"
        length = data.begin(where, loader)["length"]
        batches = loss.first = iter(loader)
        for count in itertools.count(1):
            due = self._due(self.steps + 1)
            with checks.random.fetch(due and count > 1), loss.look(due):
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
                checks.random.note(start=count == 1)
            with loss.look(due, leaves(batch)):
                yield batch
        where = f"the end of epoch {epoch}"
        data.end(where, count - 1)
        # The last check is a while ago, and the training is still young.
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
        self.checks.data.taken = 0
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
        checks.disarm()
        preflight.run(
            checks.exchange, checks.training, loss, batches, backward, tolerance
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
