"""Invariant: ranks that draw random numbers draw different ones."""

import random
import sys
from contextlib import contextmanager

import torch
from torch import nn

from .digests import digest, number
from .exchange import Exchange, GuardError, names
from .preflight import accelerator


class Randomness:
    """Looks at the generators, without using them.

    Equal states alone are healthy: all ranks may be seeded alike to start with equal
    weights. They are wrong once a step, or a fetch of a batch, moves them on. Without
    ``epoch`` only forward passes count: there loaders draw seeds between them.

    Args:
        shared: all ranks are one model (tensor parallel): then equal is right.
    """

    def __init__(
        self, exchange: Exchange, model: nn.Module, device: torch.device, shared: bool
    ):
        self.exchange, self.model, self.device = exchange, model, device
        self.shared, self.points = shared or exchange.size == 1, []
        self.passes: list = []  # states around forward passes
        self.fetches: list = []  # states of other generators around a fetch

    def state(self) -> list[int]:
        """A number for the CPU's generator, and one for the model's device."""
        found = [int(digest(torch.get_rng_state()))]
        module = accelerator(self.device)
        if module is not None and hasattr(module, "get_rng_state"):
            state = module.get_rng_state(self.device)
            found.append(int(digest(state.cpu())))
        return found

    def note(self, start: bool = False) -> None:
        """Remember the states of now; ``start`` forgets the earlier ones."""
        if not self.shared:
            self.points = [*([] if start else self.points), self.state()]

    def enter(self) -> None:
        """Remember the states at the begin of a forward pass."""
        if not self.shared:
            self.passes.append([self.state()])

    def leave(self) -> None:
        """Remember the states at the end of a forward pass."""
        if self.passes and len(self.passes[-1]) == 1:
            self.passes[-1].append(self.state())

    @contextmanager
    def fetch(self, due: bool):
        """Remember Python's and NumPy's generators before and after a fetch."""
        if not due or self.shared:
            yield
            return
        self.note(start=True)
        self.fetches = [self._others()]
        yield
        self.fetches.append(self._others())

    def _others(self) -> list[int]:
        numpy, found = sys.modules.get("numpy"), [number(str(random.getstate())), 0]
        if numpy:
            state = numpy.random.get_state()
            found[1] = number(state[1].tobytes() + str(state[2]).encode())
        return found

    def numbers(self) -> list[int]:
        """For each generator: all its states since the start, and whether it moved."""
        ours = [[*self.points, self.state()]] if self.points else self.passes
        result = []
        for spans, count in (ours, len(self.state())), ([self.fetches], 2):
            for place in range(count):
                lines = [[state[place] for state in span] for span in spans]
                moved = any(len(set(line)) > 1 for line in lines)
                result += [number(str(lines)), int(moved)]
        self.points, self.passes, self.fetches = [], [], []
        return result

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Raise if two ranks went through the same states, and these moved."""
        count = len(rows[0]) // 2
        kinds = [*("CPU", self.device.type)[: count - 2], "Python's", "NumPy's"]
        for place in range(0, min(map(len, rows)), 2):
            values = [tuple(row[place : place + 2]) for row in rows]
            for (_, moved), ranks in self.exchange.split(values).items():
                if moved and len(ranks) > 1:
                    raise GuardError(
                        f"{where}: {names(ranks)} draw the same random numbers "
                        f"({kinds[place // 2]} generator): the same dropout, the same "
                        "augmentation. After building the model, seed with "
                        'seed + rank; if it is meant, skip=("randomness",).'
                    )
