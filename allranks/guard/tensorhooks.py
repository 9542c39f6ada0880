"""Hooks on parameters that change a gradient: the same ones on every rank."""

from torch import nn

from .digests import DTensor


class Recorder:
    """Calls a hook, and notes whether it changes the gradient; a logger's does not."""

    def __init__(self, hook, name: str, seen: dict):
        self.hook, self.name, self.seen = hook, name, seen

    def __call__(self, gradient):
        """Return what the hook returns."""
        version = gradient._version
        result = self.hook(gradient)
        if result is not None or gradient._version != version:
            self.seen[self.name] = self.seen.get(self.name, 0) + 1
        return result


class TensorHooks:
    """Watches the hooks of plain parameters during a step that ends in a check."""

    def __init__(self):
        self.held: list = []
        self.seen: dict[str, int] = {}

    def arm(self, parameters: dict[str, nn.Parameter]) -> None:
        """Put a recorder around each hook."""
        self.disarm()
        self.seen = {}
        for name, parameter in parameters.items():
            hooks = getattr(parameter, "_backward_hooks", None)
            if not hooks or isinstance(parameter, DTensor):
                continue
            for key, hook in list(hooks.items()):
                hooks[key] = Recorder(hook, name, self.seen)
                self.held.append((hooks, key))

    def disarm(self) -> None:
        """Give the hooks back as they were."""
        for hooks, key in self.held:
            if isinstance(hooks.get(key), Recorder):
                hooks[key] = hooks[key].hook
        self.held = []

    def text(self) -> str:
        """A line for each parameter whose gradient a hook has changed."""
        lines = (f"a hook changes the gradient of {name}" for name in self.seen)
        return "\n".join(lines)
