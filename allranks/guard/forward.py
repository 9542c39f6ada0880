"""What happens in the model's forward: its precision, and the random numbers it draws.

Hooks are on the model only in steps that end in a check.
"""

import torch
from torch import nn

from . import modes


def nothing(*_args) -> None:
    """Stand for a hook in a copy of the model, such as a moving average's."""


def itself(thing):
    """Return what is given: how a pickle finds it again."""
    return thing


class Hook:
    """A hook that a copied or pickled model leaves behind."""

    def __init__(self, call):
        self.call = call

    @torch.compiler.disable
    def __call__(self, *_args) -> None:
        """Note; change nothing."""
        self.call()

    def __deepcopy__(self, _memo):
        """Leave the guard, and its process group, with the original."""
        return nothing

    def __reduce__(self):
        """Leave the guard behind in a pickled model too."""
        return itself, (nothing,)


class Forward:
    """Looks at each forward of the model, from outside."""

    def __init__(self, model: nn.Module, device: torch.device, random):
        self.model, self.device, self.random = model, device, random
        self.handles: list = []
        self.seen: list[str] = []

    def arm(self) -> None:
        """Set the hooks; what they saw before is forgotten."""
        self.disarm()
        self.seen = []
        self.random.passes = []
        model = self.model
        if getattr(model, "_compiled_call_impl", None) is not None:
            return  # they would be compiled, again and again
        if isinstance(model, torch.jit.ScriptModule):
            return
        self.handles = [
            model.register_forward_pre_hook(Hook(self._enter)),
            model.register_forward_hook(Hook(self.random.leave)),
        ]

    def disarm(self) -> None:
        """Take the hooks away."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _enter(self) -> None:
        if torch.is_grad_enabled():
            self.seen.append(modes.autocast(self.device))
            self.random.enter()

    def text(self) -> str:
        """What all forward passes since ``arm`` ran in: one line."""
        return " and ".join(dict.fromkeys(filter(None, self.seen)))
