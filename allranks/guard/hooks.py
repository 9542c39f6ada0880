"""Hooks in a step with a check: the guard's around forward, and those of the program.

The guard's own hooks note the precision of each forward pass and the random numbers
that it draws. Each of the program's hooks is wrapped in a recorder, which notes whether
that hook changes anything. In steps without a check there are no hooks or recorders.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from allranks.guard.configuration import autocast
from allranks.guard.digests import DTensor
from allranks.guard.randomness import Randomness

MODULES = {
    "_forward_pre_hooks": "the input",
    "_forward_hooks": "the output",
    "_backward_hooks": "the gradients",
    "_backward_pre_hooks": "the gradients",
}
CLIPS = (
    "a hook clips {}, on each rank, before DDP averages: the mean of clipped gradients "
    "is not the clipped mean. Clip after backward: clip_grad_norm_, clip_grad_value_."
)


def nothing(*_args: Any) -> None:
    """Do nothing, in place of a hook in a copy of the model (a moving average's)."""


def itself(thing: Any) -> Any:
    """Return the argument; a pickle of a hook is a call of this."""
    return thing


class Hook:
    """A hook that a copied or pickled model leaves behind.

    Args:
        call: takes nothing and changes nothing.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    @torch.compiler.disable
    def __call__(self, *_args: Any) -> None:
        """Call the function; whatever the hook is given, it changes nothing."""
        self.call()

    def __deepcopy__(self, _memo: dict) -> Callable:
        """Leave the guard, and its process group, with the original."""
        return nothing

    def __reduce__(self) -> tuple:
        """Leave the guard behind in a pickled model too."""
        return itself, (nothing,)


class ForwardHooks:
    """Looks at each forward pass of the model from outside."""

    def __init__(
        self, model: nn.Module, device: torch.device, random: Randomness
    ) -> None:
        self.model, self.device, self.random = model, device, random
        self.handles: list[RemovableHandle] = []
        self.seen: list[str] = []

    def arm(self) -> None:
        """Set the hooks, and forget what they saw before."""
        self.disarm()
        self.seen = []
        self.random.passes = []
        model = self.model
        if getattr(model, "_compiled_call_impl", None) is not None:
            return  # the hooks would be compiled, again and again
        if isinstance(model, torch.jit.ScriptModule):
            return
        self.handles = [
            model.register_forward_pre_hook(Hook(self._enter)),
            model.register_forward_hook(Hook(self.random.leave)),
        ]

    def disarm(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _enter(self) -> None:
        if torch.is_grad_enabled():
            self.seen.append(autocast(self.device))
            self.random.enter()

    def text(self) -> str:
        """Say in one line which precisions the forward passes since ``arm`` ran in."""
        return " and ".join(dict.fromkeys(filter(None, self.seen)))


class Recorder:
    """Calls a hook, and notes whether it changes what it is given, unlike a logger's.

    Args:
        hook: the program's own.
        name: of what it is given.
        seen: where the names of what was changed are put.
        clips: where the names of gradients are put that were cut at one size; None does
            not look for them.
    """

    def __init__(
        self, hook: Callable, name: str, seen: set[str], clips: set[str] | None
    ) -> None:
        self.hook, self.name, self.seen, self.clips = hook, name, seen, clips

    def __deepcopy__(self, memo: dict) -> Callable:
        """Give a copy of the model the hook alone."""
        return copy.deepcopy(self.hook, memo)

    def __reduce__(self) -> tuple:
        """Pickle the hook alone."""
        return itself, (self.hook,)

    @torch.compiler.disable
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Return what the hook returns."""
        first = args[0]
        # It may change the tensor in place, raising its version, or return a new one.
        version = first._version if torch.is_tensor(first) else 0
        before = _num_largest(first)
        result = self.hook(*args, **options)
        after = _num_largest(first if result is None else result)
        if self.clips is not None and after > max(before, 1):
            self.clips.add(self.name)
        if torch.is_tensor(first) and first._version != version:
            self.seen.add(self.name)
        if result is not None:
            self.seen.add(self.name)
        return result


class ProgramHooks:
    """Watches the program's hooks on modules and on plain parameters."""

    def __init__(self) -> None:
        self.recorders: list[tuple[dict, int]] = []  # hooks of a module, and a key
        self.seen: set[str] = set()  # what some hook has changed
        self.clips: set[str] = set()  # gradients that a hook cuts at one size

    def arm(self, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        """Put a recorder around each hook."""
        self.disarm()
        self.seen = set()
        for name, module in model.named_modules():
            if getattr(module, "_compiled_call_impl", None) is not None:
                continue
            for which, what in MODULES.items():
                hooks = getattr(module, which, None)
                if hooks:
                    self._wrap(hooks, f"{what} of {name or 'the model'}")
        for name, parameter in parameters.items():
            hooks = getattr(parameter, "_backward_hooks", None)
            if not hooks or isinstance(parameter, DTensor):
                continue
            self._wrap(hooks, f"the gradient of {name}", self.clips)

    def _wrap(self, hooks: dict, name: str, clips: set[str] | None = None) -> None:
        # In place of the hook, under its key, so that handle.remove() still finds it.
        for key, hook in list(hooks.items()):
            home = getattr(hook, "__module__", None) or type(hook).__module__
            if not home.startswith("torch.") and not isinstance(hook, Hook):
                hooks[key] = Recorder(hook, name, self.seen, clips)
                self.recorders.append((hooks, key))

    def disarm(self) -> None:
        """Restore the program's hooks."""
        for hooks, key in self.recorders:
            if isinstance(hooks.get(key), Recorder):
                hooks[key] = hooks[key].hook
        self.recorders = []

    def text(self) -> str:
        """Write a line for each thing that a hook has changed."""
        return "\n".join(f"a hook changes {name}" for name in sorted(self.seen))


def _num_largest(gradient: Any) -> int:
    """Count the elements of the largest magnitude; a clamp leaves several of them."""
    if not torch.is_tensor(gradient) or not gradient.is_floating_point():
        return 0
    size = gradient.detach().abs()
    return int((size == size.max()).sum()) if size.numel() and size.any() else 0
