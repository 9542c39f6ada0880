"""The training that is guarded: which of its tensors and settings are compared."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from allranks.guard.buffers import Buffers
from allranks.guard.wrappers import bare, joining

OUTSIDE = "optimizer's parameter outside of the model, group"
KINDS = {  # kinds of tensors, and the word that skips each; the first is named first
    "gradient": "gradients",
    "optimizer state": "optimizer",
    OUTSIDE: "parameters",
    "parameter": "parameters",
    "buffer": "buffers",
    "attribute": "buffers",
}
SKIPS = {*KINDS.values(), "data", "devices", "loss", "modes", "randomness"}

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None


class Training:
    """What a guard was given to look at.

    Args:
        model: None stands for a model without parameters.
        optimizer: one, several or none.
        scaler: a GradScaler, if there is one.
        ignore: one or more prefixes of names to leave out.
        skip: one or more of ``SKIPS``.

    Raises:
        ValueError: if ``skip`` has a word that is not in ``SKIPS``.
    """

    def __init__(
        self,
        model: nn.Module | None,
        optimizer: Optimizers,
        scaler: torch.amp.GradScaler | None,
        ignore: str | Iterable[str],
        skip: str | Iterable[str],
    ) -> None:
        ignore, skip = _words(ignore), _words(skip)
        if not SKIPS.issuperset(skip):
            raise ValueError(f"skip={skip}: there are {', '.join(sorted(SKIPS))}")
        self.model = nn.Module() if model is None else model
        self.scaler, self.skip = scaler, frozenset(skip)
        ignore += tuple(getattr(self.model, "parameters_to_ignore", ()))
        self._prefixes = tuple(map(bare, ignore))
        given = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
        self.optimizers = [found for found in given if found is not None]
        # A class that is not torch's may let each rank move a part of the weights.
        homes = [type(found).__module__ for found in self.optimizers]
        self.custom = any(not home.startswith("torch.") for home in homes)
        self.dealt = False  # whether each rank's optimizer holds a part of them
        self.copies = False  # whether optimizers hold copies, perhaps a rank's shard
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        first = next(tensors, None)
        self.device = torch.device("cpu") if first is None else first.device

    def ignored(self, name: str) -> bool:
        """Tell whether a tensor of this name is left out."""
        return bool(self._prefixes) and bare(name).startswith(self._prefixes)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the model's parameters by name, except for those to ignore."""
        return {n: p for n, p in self.model.named_parameters() if not self.ignored(n)}

    def groups(self) -> list[tuple[int, int, dict[str, Any]]]:
        """List the optimizers' groups, as (number of optimizer, of group, group)."""
        return [
            (i, j, group)
            for i, optimizer in enumerate(self.optimizers)
            for j, group in enumerate(optimizer.param_groups)
        ]

    def outside(self) -> dict[str, torch.Tensor]:
        """Return parameters that optimizers hold but the model doesn't.

        A criterion with weights has some.
        """
        own = {id(p) for p in self.model.parameters()}
        return {
            f"{j}[{place}] of optimizer {i}, {tuple(p.shape)},": p
            for i, j, group in self.groups()
            for place, p in enumerate(group["params"])
            if own and id(p) not in own and not self.ignored(f"optimizer {i}")
            if not self.copies
        }

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """Return the optimizers' state as tensors, by key and parameter."""
        found = {}
        for optimizer in self.optimizers:
            if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
                continue  # because each rank holds its own part
            for name, parameter in self.model.named_parameters():
                for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                    if key == "step" and not torch.is_tensor(value):
                        value = torch.tensor(value, device="cpu")
                    # Other numbers may be a rank's own: LBFGS keeps its last loss.
                    if torch.is_tensor(value) and (key == "step" or value.dim()):
                        found[f"{key} of {name}"] = value
        return found

    def tensors(
        self, kinds: Iterable[str], buffers: Buffers
    ) -> dict[str, dict[str, torch.Tensor]]:
        """Return what is compared bit by bit, by kind and name.

        Args:
            kinds: some of ``KINDS``.
            buffers: which knows those that a rank may have for itself.
        """
        found = {kind: {} for kind in kinds if KINDS[kind] not in self.skip}
        parameters = self.parameters()
        if "parameter" in found:
            found["parameter"] = parameters
        if OUTSIDE in found:
            found[OUTSIDE] = self.outside()
        if joining(self.model):
            found.pop("gradient", None)  # a rank without more batches has old ones
        if "gradient" in found:
            found["gradient"] = {
                name: p.grad for name, p in parameters.items() if p.grad is not None
            }
        if "buffer" in found:
            all_ = dict(self.model.named_buffers())
            found["buffer"] = self._compared(all_, buffers)
        if "attribute" in found:
            found["attribute"] = self._compared(buffers.attributes(), buffers)
        if "optimizer state" in found:
            found["optimizer state"] = {
                name: state
                for name, state in self.optimizer_state().items()
                if not self.ignored(name.partition(" of ")[2])
                if name not in buffers.free
            }
        return found

    def _compared(
        self, tensors: dict[str, torch.Tensor], buffers: Buffers
    ) -> dict[str, torch.Tensor]:
        return {
            name: tensor
            for name, tensor in tensors.items()
            if name not in buffers.free and not self.ignored(name)
        }


def _words(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
