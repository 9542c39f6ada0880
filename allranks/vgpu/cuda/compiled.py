"""``torch.compile`` is passed over: what it is given runs eagerly.

A function stays as it is. A module gets the wrapper that torch.compile gives it, since
its name is in the keys of a state dict (``_orig_mod.weight``), where scripts look.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from allranks.vgpu.cuda.say import say_once

SAID = "torch.compile is passed over, and the function runs eagerly"


def compile_nothing(model: Callable | None = None, *args: Any, **kwargs: Any) -> Any:
    """Return a function as it is, or a module in its wrapper, and say so once."""
    if model is None:
        return lambda function: compile_nothing(function)
    say_once(SAID)
    return _wrapper()(model) if isinstance(model, nn.Module) else model


def module_compile(self: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Leave the module as it is, in place of nn.Module.compile."""
    say_once(SAID)


@functools.cache
def _wrapper() -> type[nn.Module]:
    """Return the class of the wrapper; its module is imported late, as by torch."""
    from torch._dynamo import OptimizedModule

    class Eager(OptimizedModule):
        """A compiled module that is not compiled."""

        def __init__(self, mod: nn.Module, dynamo_ctx: Any = None) -> None:
            mod = mod._orig_mod if isinstance(mod, OptimizedModule) else mod
            super().__init__(mod, dynamo_ctx)

        def _initialize(self) -> None:
            self.forward = self._orig_mod.__call__

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return nn.Module.__call__(self, *args, **kwargs)  # without its warning

        def __reduce__(self) -> tuple:
            return compile_nothing, (self._orig_mod,)

    Eager.__name__ = Eager.__qualname__ = OptimizedModule.__name__
    return Eager
