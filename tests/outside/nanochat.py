"""The Muon of this book and that of PyTorch, as the tests of nanochat call them.

In a copy of karpathy/nanochat, this file takes the place of nanochat/optim.py. The
variable SUBJECT names the class that is tested.
"""

import importlib
import os

import torch


class MuonAdamW:
    """An optimizer per group of parameters: Muon of matrices, or torch's AdamW."""

    def __init__(self, param_groups: list[dict]) -> None:
        self.optimizers = [self.make(**group) for group in param_groups]

    def make(self, kind: str, params: list, lr: float, **how: object) -> object:
        """Return the optimizer of a group; Muon has neither beta2 nor decay here."""
        if kind == "adamw":
            return torch.optim.AdamW(params, lr, **how)
        module, _, name = os.environ["SUBJECT"].rpartition(".")
        make = getattr(importlib.import_module(module), name)
        more = {"weight_decay": 0.0} if make is torch.optim.Muon else {}
        return make(params, lr=lr, momentum=how["momentum"], **more)

    def step(self) -> None:
        """Update all parameters."""
        for optimizer in self.optimizers:
            optimizer.step()
