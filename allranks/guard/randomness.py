"""Invariant: ranks that draw random numbers draw different ones.

What the guard needs to leave every generator as it was is here, too.
"""

import gc
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from allranks.guard.digests import digest, number
from allranks.guard.exchange import SAME_NUMBERS, Exchange, GuardError, names


def accelerator(device: torch.device) -> ModuleType | None:
    """Return torch's module for a device, such as torch.cuda; None for the CPU."""
    return None if device.type in ("cpu", "meta") else torch.get_device_module(device)


@contextmanager
def preserved(device: torch.device) -> Iterator[None]:
    """Restore the random states of torch, Python and NumPy at the end of a block."""
    module, numpy = accelerator(device), sys.modules.get("numpy")
    states = torch.get_rng_state(), random.getstate()
    there = module.get_rng_state(device) if module else None
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if module:
            module.set_rng_state(there, device)
        if numpy:
            numpy.random.set_state(numpy_state)


def generators(device: torch.device) -> dict[str, Any]:
    """Return the states of torch's, Python's and NumPy's global generators, by name."""
    states = {"the CPU's generator": int(digest(torch.get_rng_state()))}
    module = accelerator(device)
    if module and hasattr(module, "get_rng_state"):
        there = module.get_rng_state(device).cpu()
        states[f"{device.type}'s generator"] = int(digest(there))
    states["Python's generator"] = random.getstate()
    numpy = sys.modules.get("numpy")
    if numpy:
        kind, keys, *rest = numpy.random.get_state()
        states["NumPy's generator"] = kind, keys.tobytes(), *rest
    return states


def drawers() -> dict[int, int]:
    """Return the states of NumPy's and Python's generators, a program's own too."""
    numpy = sys.modules.get("numpy")
    kinds = (random.Random, numpy.random.BitGenerator) if numpy else random.Random
    # The global ones by name: live ranks freeze them, and gc lists nothing frozen.
    everybodys = [random.random.__self__]
    everybodys += [numpy.random.get_bit_generator()] if numpy else []
    states = {}
    for thing in [*everybodys, *gc.get_objects()]:
        kind = type(thing)
        if issubclass(kind, kinds) and not issubclass(kind, random.SystemRandom):
            state = thing.getstate() if hasattr(thing, "getstate") else thing.state
            states[id(thing)] = number(str(state))
    return states


class Randomness:
    """Looks at the generators without using them.

    Equal states alone are healthy, since all ranks may have the same seed in order to
    start with equal weights. They are wrong if a step, or a fetch of a batch, draws
    from them. Without ``epoch`` only forward passes count, because loaders draw seeds
    between those.

    Args:
        exchange: between the ranks.
        device: the model's.
        shared: whether all ranks hold one tensor-parallel model, and so should draw the
            same numbers.
    """

    def __init__(self, exchange: Exchange, device: torch.device, shared: bool) -> None:
        self.exchange, self.device = exchange, device
        self.shared = shared or exchange.size == 1
        self.points: list[list[int]] = []  # states since the start of a batch
        self.passes: list[list[list[int]]] = []  # states around forward passes
        self.fetches: list[list[int]] = []  # of other generators, around a fetch

    def state(self) -> list[int]:
        """Return a number for the CPU's generator, and one for the model's device."""
        states = [int(digest(torch.get_rng_state()))]
        module = accelerator(self.device)
        if module is not None and hasattr(module, "get_rng_state"):
            state = module.get_rng_state(self.device)
            states.append(int(digest(state.cpu())))
        return states

    def note(self, start: bool = False) -> None:
        """Remember the present states, and at the ``start`` forget the earlier ones."""
        if not self.shared:
            self.points = [*([] if start else self.points), self.state()]

    def enter(self) -> None:
        """Remember the states at the beginning of a forward pass."""
        if not self.shared:
            self.passes.append([self.state()])

    def leave(self) -> None:
        """Remember the states at the end of a forward pass."""
        if self.passes and len(self.passes[-1]) == 1:
            self.passes[-1].append(self.state())

    @contextmanager
    def fetch(self, due: bool) -> Iterator[None]:
        """Remember Python's and NumPy's generators before and after a fetch."""
        if not due or self.shared:
            yield
            return
        self.note(start=True)
        self.fetches = [self._others()]
        yield
        self.fetches.append(self._others())

    def _others(self) -> list[int]:
        numpy, numbers = sys.modules.get("numpy"), [number(str(random.getstate())), 0]
        if numpy:
            state = numpy.random.get_state()
            numbers[1] = number(state[1].tobytes() + str(state[2]).encode())
        return numbers

    def numbers(self) -> list[int]:
        """Return two numbers per generator: for its states, and 1 if they changed."""
        # A span is a time in which nothing but the step draws: from the batch to here,
        # or a forward pass. For each generator, its states in all spans.
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
        """Raise if two ranks have drawn the same random numbers."""
        count = len(rows[0]) // 2  # generators: of CPU and device, Python and NumPy
        kinds = [*("CPU", self.device.type)[: count - 2], "Python's", "NumPy's"]
        for place in range(0, min(map(len, rows)), 2):
            values = [tuple(row[place : place + 2]) for row in rows]
            # Equal states are no fault as long as nobody draws from them.
            for (_, moved), ranks in self.exchange.split(values).items():
                if moved and len(ranks) > 1:
                    raise GuardError(
                        f"{where}: {names(ranks)} draw the same random numbers "
                        f"({kinds[place // 2]} generator): the same dropout, the same "
                        "augmentation. After building the model, seed with "
                        'seed + rank; if it is meant, skip=("randomness",).',
                        SAME_NUMBERS,
                    )
