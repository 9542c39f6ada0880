"""torch's tools that look at a program from C++: its profiler and its exporter.

A profiler that is told to time CUDA asks C++ for CUDA's events, and prints a stack for
each op since there are none. An exporter hands cuda devices to C++, whose answer, that
this torch is built without CUDA, ends the process.
"""

import contextlib
from typing import Any

import torch
from torch.autograd import profiler
from torch.utils import _pytree as pytree

from allranks.vgpu.errors import refusal
from allranks.vgpu.tensor import VirtualTensor

_own_profile = profiler.profile.__init__
_own_export = torch.export.export


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
