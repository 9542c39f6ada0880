"""The guard itself: when to check, and what."""

import itertools
from collections.abc import Iterator

from torch import nn

from . import marks, metrics, preflight, start
from .checks import Checks
from .hooks import joining
from .loaders import leaves
from .why import KINDS, OUTSIDE

END = object()


class Guard(Checks):
    """Checks, every so many steps, what must hold when ranks train one model.

    Three lines in a training loop::

        watch = Guard(model, optimizer)  # after DDP(...) or fully_shard(...)
        for x, y in watch.epoch(loader, epoch):
            loss_of(model, x, y).backward()
            watch.step()  # after backward, once per step
            optimizer.step()

    Every rank calls each of them. What is wrong raises GuardError, with the same
    sentence on every rank. Nothing of the training is changed; no generator is touched.

    Args:
        model: as it is trained: wrapped by DDP, sharded by fully_shard or
            parallelize_module, or bare if you synchronise by hand. None: only values.
        optimizer: or a list of them; None leaves them out.
        every: steps between checks. The first ones are at steps 1, 2, 4, 8 …
        scaler: a GradScaler, to compare its scale and to know its factor.
        world_size: how many ranks there should be; None believes it.
        group: the ranks that hold the same part of the model, if not all of them;
            None takes DDP's.
        ignore: prefixes of parameters' names that may differ between ranks.
        skip: of "parameters", "buffers", "optimizer", "gradients", "data", "devices",
            "loss", "modes" and "randomness": what not to check.
        tolerance: for gradients, relative to their norm: what 16 bits round off.
        patience_s: how long a check waits for a rank that does not come.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer=None,
        *,
        every: int = 100,
        scaler=None,
        world_size: int | None = None,
        group=None,
        ignore: tuple[str, ...] = (),
        skip: tuple[str, ...] = (),
        tolerance: float = 0.05,
        patience_s: float = 300,
    ):
        if every < 1:
            raise ValueError(f"every={every}: steps between checks must be 1 or more")
        super().__init__(model, optimizer, scaler, group, ignore, skip, patience_s)
        self.every, self.tolerance = every, tolerance
        try:
            start.begin(self, "the start", world_size)
            self.compare("the start", (OUTSIDE, "parameter", "attribute"))
        except BaseException:
            self.remove()
            raise
        self.prepare(self._due(1))

    def _due(self, step: int) -> bool:
        return step % self.every == 0 or (step < self.every and step & (step - 1) == 0)

    def epoch(self, loader, epoch: int, global_batch: int | None = None) -> Iterator:
        """Yield the loader's batches; check counts, shares, order and randomness.

        A loader without a length is asked for each batch one step ahead, so that no
        rank starts a step that another cannot make: one small message per step.

        Args:
            loader: a DataLoader of the training, or any iterable of batches.
            epoch: for the messages.
            global_batch: samples per step on all ranks, if you want it checked.
        """
        if "data" in self.skip or self.joins():
            yield from loader
            return
        where, self.fed = f"the start of epoch {epoch}", True
        length = self.data.begin(where, loader)["length"]
        batches = self.sources.first = iter(loader)
        for count in itertools.count(1):
            due = self._due(self.steps + 1)
            with self.random.fetch(due and count > 1), self.sources.look(due):
                batch = next(batches, END)
            if length < 0:
                at = f"batch {count} of epoch {epoch}"
                self.data.vote(at, batch is not END, count - 1)
            if batch is END:
                break
            if count == 1 and global_batch is not None:
                self.data.global_batch(where, batch, global_batch)
            self.data.seen(batch)
            if due:
                self.random.note(start=count == 1)
            with self.sources.look(due, leaves(batch)):
                yield batch
        where = f"the end of epoch {epoch}"
        self.data.end(where, count - 1)
        if 2 * self.steps >= 3 * self.checked > 0:  # a while ago, and early
            self.compare(where, (OUTSIDE, "parameter"))

    def step(self) -> None:
        """Count a step, and check if it is time: after backward, before the optimizer.

        Call it once per optimizer step, at the same place on every rank.
        """
        self.steps += 1
        self.sources.tape.stop()
        self.calls.counted()
        if self._due(self.steps) and not self.joins():
            self.check()
        self.data.taken = 0
        self.prepare(self._due(self.steps + 1))

    def check(self) -> None:
        """Check now: parameters, buffers, optimizer, gradients, batches, randomness."""
        self.checked = self.steps
        where = "after Join" if joining(self.model) else f"step {self.steps}"
        stage = self.settings.stage()
        ready = self.local.armed and stage is not None
        found = self.compare(where, tuple(KINDS), self.local.look() if ready else [])
        if found and where != "after Join":
            self.compare_gradients(where, stage == "scaled", found)

    def preflight(self, loss, *batches, backward=None, tolerance: float = 0.01) -> None:
        """Check that W ranks make the gradient that one process makes on the union.

        Call it before the first step. It leaves random states, buffers and gradients
        as they were, and runs in evaluation mode: no dropout, no batch statistics.

        Args:
            loss: ``loss(model, batch)``, the mean loss as one process would write it.
            batches: this rank's batch, or all that add up to one step.
            backward: ``backward(batches)``: what your training does for gradients;
                the default calls ``loss(model, batch).backward()``.
            tolerance: relative error that is rounding; take 0.05 for 16 bits.
        """
        self.disarm()
        preflight.run(self, loss, batches, backward, tolerance)
        self.prepare(self._due(self.steps + 1))

    def mark(self) -> dict:
        """Describe the state, in plain numbers, to be saved in the checkpoint."""
        return marks.made(self)

    def resumed(self, mark: dict) -> None:
        """Check that weights, optimizer and settings are those of a ``mark``.

        Call it once everything is loaded; the guard counts on from the mark's step.
        """
        marks.compare(self, mark)
        self.steps = mark["steps"]
        self.prepare(self._due(self.steps + 1))

    def same(self, **values) -> None:
        """Check that numbers, tensors, settings or modules are equal on all ranks."""
        metrics.same(self.exchange, self.replicas, values)

    def apart(self, **values) -> None:
        """Check that each rank has values of its own, such as its seed."""
        metrics.apart(self.exchange, values)

    def mean(self, total, count) -> float:
        """Divide the sum of all ranks' totals by the sum of their counts."""
        return metrics.mean(self.exchange, total, count)[0]

    def metric(self, value, total, count, samples: int | None = None) -> None:
        """Check a reported mean, ``value``, against all ranks' totals and counts.

        Args:
            samples: how many there are in the data set: each must be counted once.
        """
        metrics.check(self.exchange, value, total, count, samples)

    def remove(self) -> None:
        """Take the guard away: hooks and group. A second call does nothing."""
        self.disarm()
        self.calls.remove()
        self.exchange.close()

    def __enter__(self):
        """Enter a block at whose end the guard is removed."""
        return self

    def __exit__(self, *_error) -> None:
        self.remove()
