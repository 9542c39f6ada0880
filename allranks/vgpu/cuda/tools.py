"""torch's tools that look at a program: its profiler, its exporter, its compiler.

A profiler that is told to time CUDA asks C++ for CUDA's events, and prints a stack for
each op since there are none. An exporter hands cuda devices to C++, whose answer, that
this torch is built without CUDA, ends the process.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import profiler
from torch.utils import _pytree as pytree

from allranks.vgpu.messages import refusal, say_once
from allranks.vgpu.tensor import VirtualTensor

_own_profile = profiler.profile.__init__
_own_export = torch.export.export
SAID = "torch.compile is passed over, and the function runs eagerly"


def profile(
    self: profiler.profile,
    enabled: bool = True,
    *,
    use_cuda: bool = False,
    use_device: str | None = None,
    use_cpu: bool = True,
    **options: Any,
) -> None:
    """Begin a profile of the host only, also where the GPU's is asked for."""
    if use_cuda or use_device == "cuda":
        use_device, use_cpu = None, True
    _own_profile(self, enabled, use_device=use_device, use_cpu=use_cpu, **options)


class emit_nvtx(contextlib.nullcontext):
    """The context of torch.autograd.profiler.emit_nvtx, for a profiler that is not."""

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        super().__init__()


def export(mod: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Export a module that is on the host.

    Raises:
        NotImplementedError: if something of it, or of its inputs, is on a GPU.
    """
    leaves = [*mod.parameters(), *mod.buffers(), *pytree.tree_leaves((args, kwargs))]
    if any(isinstance(leaf, VirtualTensor) for leaf in leaves):
        raise NotImplementedError(refusal("torch.export of a module on cuda"))
    return _own_export(mod, *args, **kwargs)


def compile_nothing(model: Callable | None = None, *args: Any, **kwargs: Any) -> Any:
    """Return a function as it is, or a module in its wrapper, and say so once.

    torch.compile wraps a module, and its name is then in the keys of a state dict
    (``_orig_mod.weight``), where scripts look.
    """
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
