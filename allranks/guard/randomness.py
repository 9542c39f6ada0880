"""Invariant: ranks that draw random numbers draw different ones."""

import torch
from torch import nn

from .digests import digest, number
from .exchange import Exchange, GuardError, names
from .preflight import accelerator


class Randomness:
    """Looks at torch's generators, without using them.

    Equal states alone are healthy: all ranks may be seeded alike to start with equal
    weights. They are wrong once a step, or a fetch of a batch, moves them on.

    Args:
        shared: all ranks are one model (tensor parallel): then equal is right.
    """

    def __init__(
        self, exchange: Exchange, model: nn.Module, device: torch.device, shared: bool
    ):
        self.exchange, self.model, self.device = exchange, model, device
        self.shared, self.points = shared, []

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
        if self.shared or self.exchange.size == 1:
            return
        self.points = [*([] if start else self.points), self.state()]

    def numbers(self) -> list[int]:
        """For each generator: all its states since the start, and whether it moved."""
        if not self.points:
            return []
        points = [*self.points, self.state()]
        self.points = []
        columns = zip(*points, strict=True)
        return [x for c in columns for x in (number(str(c)), int(len(set(c)) > 1))]

    def judge(self, where: str, rows: list[list[int]]) -> None:
        """Raise if two ranks went through the same states, and these moved."""
        for place in range(0, min(map(len, rows)), 2):
            values = [tuple(row[place : place + 2]) for row in rows]
            for (_, moved), ranks in self.exchange.split(values).items():
                if moved and len(ranks) > 1:
                    kind = "CPU" if place == 0 else self.device.type
                    raise GuardError(
                        f"{where}: {names(ranks)} draw the same random numbers "
                        f"({kind} generator): the same dropout, the same augmentation. "
                        "After building the model, seed with seed + rank; if it is "
                        'meant, skip=("randomness",).'
                    )


def draws(model: nn.Module) -> bool:
    """Whether a module in training draws random numbers (dropout of any kind)."""
    for module in model.modules():
        if not module.training:
            continue
        chance = getattr(module, "p", getattr(module, "drop_prob", 1))
        if "Drop" in type(module).__name__ and chance:
            return True
        if isinstance(getattr(module, "dropout", None), float) and module.dropout > 0:
            return True
    return False
