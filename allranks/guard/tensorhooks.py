"""Hooks that change what a module or a gradient is: the same ones on every rank."""

import copy

import torch
from torch import nn

from .digests import DTensor
from .forward import Hook, itself

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


def peaks(gradient) -> int:
    """How many elements are as large as the largest: after a clamp it is several."""
    if not torch.is_tensor(gradient) or not gradient.is_floating_point():
        return 0
    size = gradient.detach().abs()
    return int((size == size.max()).sum()) if size.numel() and size.any() else 0


class Recorder:
    """Calls a hook, and notes whether it changes the gradient; a logger's does not."""

    def __init__(self, hook, name: str, seen: dict, clips: set | None = None):
        self.hook, self.name, self.seen, self.clips = hook, name, seen, clips

    def __deepcopy__(self, memo):
        """Give a copy of the model the hook alone."""
        return copy.deepcopy(self.hook, memo)

    def __reduce__(self):
        """Pickle the hook alone."""
        return itself, (self.hook,)

    @torch.compiler.disable
    def __call__(self, *args, **options):
        """Return what the hook returns."""
        first = args[0]
        version = first._version if torch.is_tensor(first) else 0
        before = peaks(first)
        result = self.hook(*args, **options)
        after = peaks(first if result is None else result)
        if self.clips is not None and after > max(before, 1):
            self.clips.add(self.name)
        if torch.is_tensor(first) and first._version != version:
            self.seen[self.name] = True
        if result is not None:
            self.seen[self.name] = True
        return result


class TensorHooks:
    """Watches the hooks of modules and of plain parameters in a step with a check."""

    def __init__(self):
        self.held: list = []
        self.seen: dict[str, bool] = {}
        self.clips: set[str] = set()  # gradients that a hook cuts at one size

    def arm(self, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        """Put a recorder around each hook."""
        self.disarm()
        self.seen = {}
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

    def _wrap(self, hooks: dict, name: str, clips: set | None = None) -> None:
        for key, hook in list(hooks.items()):
            home = getattr(hook, "__module__", None) or type(hook).__module__
            if not home.startswith("torch.") and not isinstance(hook, Hook):
                hooks[key] = Recorder(hook, name, self.seen, clips)
                self.held.append((hooks, key))

    def disarm(self) -> None:
        """Give the hooks back as they were."""
        for hooks, key in self.held:
            if isinstance(hooks.get(key), Recorder):
                hooks[key] = hooks[key].hook
        self.held = []

    def text(self) -> str:
        """A line for each parameter whose gradient a hook has changed."""
        return "\n".join(f"a hook changes {name}" for name in sorted(self.seen))
