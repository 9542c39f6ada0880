"""Where torch's own Python has to know virtual GPUs: all patches, and their undoing."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction, Function
from torch.jit import _builtins
from torch.optim import optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _foreach_utils
from torch.utils._device import DeviceContext

from allranks.vgpu import (
    autograd,
    copies,
    device_module,
    foreach,
    generators,
    lazy,
    pinned,
    sharing,
    storages,
    subclasses,
)
from allranks.vgpu.machine import Where, current, is_virtual
from allranks.vgpu.patcher import Entry, Patcher
from allranks.vgpu.tensor import VirtualTensor

_rebuild_tensor = torch._utils._rebuild_tensor
_as_tensor, _tensor = torch.as_tensor, torch.tensor
_device_index = torch._utils._get_device_index


def _default_device() -> torch.device | None:
    """Return the device of ``with torch.device(...)``; None if there is none.

    It cannot ask torch.get_default_device, because that calls torch.tensor, which comes
    here.
    """
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


def as_tensor(
    data: Any, dtype: torch.dtype | None = None, device: Where = None
) -> torch.Tensor:
    """Share or copy, as torch.as_tensor does, whose C++ cannot tell devices apart."""
    device = _default_device() if device is None else device
    if isinstance(data, VirtualTensor):
        return data.to(device=device or data.device, dtype=dtype or data.dtype)
    if device is None or not is_virtual(torch.device(device)):
        return _as_tensor(data, dtype=dtype, device=device)
    return _as_tensor(data, dtype=dtype, device="cpu").to(device)


def tensor(
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Where = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> torch.Tensor:
    """Make a tensor on the host, and copy it to the device, which is counted."""
    device = _default_device() if device is None else device
    options = {"dtype": dtype, "requires_grad": requires_grad}
    if device is None or not is_virtual(torch.device(device)):
        made = _tensor(data, device=device, **options)
        return pinned.mark(made) if pin_memory else made
    made = _tensor(data, dtype=dtype, device="cpu").to(device)
    return made.requires_grad_(requires_grad)


def rebuild_tensor(
    storage: torch.TypedStorage, offset: int, size: tuple, stride: tuple
) -> torch.Tensor:
    """Rebuild a tensor from a file, on the virtual GPU that holds its storage."""
    home = current().home(storage._untyped_storage)
    if home is None:
        return _rebuild_tensor(storage, offset, size, stride)
    inner = torch.empty(0, dtype=storage.dtype, device="cpu")
    inner.set_(storage._untyped_storage, offset, size, stride)
    return VirtualTensor(inner, home)


def tag(storage: torch.UntypedStorage) -> str | None:
    """Name the virtual GPU that a storage is on, for torch.save."""
    home = current().home(storage)
    return None if home is None else str(home)


def restore(
    storage: torch.UntypedStorage, location: str
) -> torch.UntypedStorage | None:
    """Put a storage that torch.load has read on the virtual GPU that its tag names."""
    if not is_virtual(torch.device(location)):
        return None
    machine = current()
    if machine.kind == "cuda":
        torch.cuda._lazy_init()  # as any use of a device does
    return storages.put(storage, machine.device(location))


def device_index(device: Where, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return a device's index, as torch does, and refuse one that is not plugged in."""
    index = _device_index(device, optional, allow_cpu)
    return index if index == -1 else current().device(index).index


class _NoNccl:
    """Stands for NCCL, which cannot be used for virtual tensors."""

    @staticmethod
    def is_available(tensors: Sequence[torch.Tensor]) -> bool:
        return False


PATCHES = [
    (torch.Tensor, "to", copies.to),
    (torch, "as_tensor", as_tensor),
    (torch, "tensor", tensor),
    (torch, "Generator", generators.Generator),
    *generators.PATCHES,
    *lazy.PATCHES,
    *pinned.PATCHES,
    (torch.Tensor, "data", copies.data),
    (torch.Tensor, "grad", copies.grad),
    (nn.Parameter, "__new__", staticmethod(subclasses.new_parameter)),
    (torch.UntypedStorage, "resize_", storages.resize_),
    (torch.UntypedStorage, "clone", storages.clone),
    (torch.UntypedStorage, "device", property(storages.device)),
    (torch.autograd, "_make_grads", autograd.make_grads),
    (torch.autograd, "_engine_run_backward", autograd.run_engine),
    (Function, "apply", classmethod(autograd.apply_forward)),
    (BackwardCFunction, "apply", autograd.apply_backward),
    (torch._utils, "_rebuild_tensor", rebuild_tensor),
    (torch._C, "_scatter", copies.scatter),
    (torch._C, "_gather", copies.gather),
    (torch._C, "_broadcast", copies.broadcast),
    (torch._C, "_broadcast_coalesced", copies.broadcast_coalesced),
    (torch._C, "_group_tensors_by_device_and_dtype", foreach.group),
    (_foreach_utils, "_foreach_supported_types", [torch.Tensor, VirtualTensor]),
    (
        optimizer,
        "_foreach_supported_types",
        [*optimizer._foreach_supported_types, VirtualTensor],
    ),
    (nn.parallel.comm, "nccl", _NoNccl),
    (sys.modules[nn.DataParallel.__module__], "_get_device_index", device_index),
    (nn.parallel.distributed, "_get_device_index", device_index),
    (nn.parallel._functions, "_get_stream", device_module.current_stream),
    *(
        (torch.accelerator, name, new)
        for name, new in device_module.ACCELERATOR.items()
    ),
]
PACKAGE = (-1, tag, restore)  # comes before torch's own, which begin at 10
_patcher = Patcher()


def make(more: Iterable[Entry] = ()) -> None:
    """Apply all patches, and those that the kind of device needs in addition."""
    entries = [*PATCHES, *more]
    # Code that torch.jit compiles calls them, too. Its table knows a function by its
    # address, so a row that stayed would soon be that of any other function.
    table = _builtins._get_builtin_table()
    rows = [
        (table, id(new), op)
        for owner, name, new in entries
        if owner is torch and (op := _builtins._find_builtin(getattr(torch, name, 0)))
    ]
    _patcher.apply([*entries, *rows])
    sharing.register()
    torch.serialization.register_package(*PACKAGE)


def add(more: Iterable[Entry]) -> None:
    """Apply some patches later, until all are undone."""
    _patcher.apply(more)


def undo() -> None:
    """Undo all patches."""
    _patcher.undo()
    torch.serialization._package_registry.remove(PACKAGE)
