"""Pinned host memory, from which a GPU copies without the CPU's help.

All memory here is the host's, so pinning is a mark on a storage: what a script asks
about it, or makes in it, is answered as on a computer with GPUs.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import _device_constructors
from torch.utils.data import dataset

from allranks.vgpu import generators
from allranks.vgpu.machine import Where
from allranks.vgpu.tensor import VirtualTensor

MAKERS = (
    "empty",
    "empty_like",
    "empty_strided",
    "zeros",
    "zeros_like",
    "ones",
    "ones_like",
    "full",
    "full_like",
    "arange",
    "rand",
    "randn",
    "randint",
    "randperm",
)
_pinned: set[int] = set()  # storages, by address
# ``with torch.device(...)`` knows functions by identity, and makes its list only once.
_device_constructors()


def mark(tensor: torch.Tensor) -> torch.Tensor:
    """Note that a tensor's memory is pinned, until it is freed; return the tensor.

    Raises:
        RuntimeError: as torch, if it is not on the host.
    """
    if isinstance(tensor, VirtualTensor):
        raise RuntimeError(
            f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned"
        )
    storage = tensor.untyped_storage()
    if storage._cdata not in _pinned:
        _pinned.add(storage._cdata)
        weakref.finalize(storage, _pinned.discard, storage._cdata).atexit = False
    return tensor


def is_pinned(self: torch.Tensor, device: Where = None) -> bool:
    """Tell whether a tensor's memory is pinned."""
    if type(self) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return self.untyped_storage()._cdata in _pinned


def pin_memory(self: torch.Tensor, device: Where = None) -> torch.Tensor:
    """Return a copy in pinned memory, or the tensor if it is there already."""
    if type(self) not in (torch.Tensor, torch.nn.Parameter, VirtualTensor):
        return self  # a wrapper, such as DTensor, whose memory is another tensor's
    return self if is_pinned(self) else mark(self.detach().clone())


def _pinning(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function of torch that obeys ``pin_memory=True``, as C++ cannot here."""
    make = generators.checked(make)

    @functools.wraps(make)
    def run(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        made = make(*args, **kwargs)
        return mark(made) if pin_memory else made

    return run


PATCHES = [
    (torch.Tensor, "pin_memory", pin_memory),
    (torch.Tensor, "is_pinned", is_pinned),
    *((torch, name, _pinning(getattr(torch, name))) for name in MAKERS),
    (dataset, "randperm", _pinning(torch.randperm)),  # imported by its name
]
