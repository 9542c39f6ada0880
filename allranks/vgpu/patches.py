"""Where torch's own Python must know of virtual GPUs: each change, and its way back."""

import torch
from torch import nn

from allranks.vgpu import comm, face
from allranks.vgpu.machine import current
from allranks.vgpu.moves import to
from allranks.vgpu.tensor import VirtualTensor

_module_apply = nn.Module._apply
_rebuild_tensor = torch._utils._rebuild_tensor
_as_tensor = torch.as_tensor
MISSING = object()


def apply(self: nn.Module, fn, recurse: bool = True) -> nn.Module:
    """Convert a module's tensors; each parameter stays the same object.

    torch sets ``param.data``, which cannot turn a CPU tensor into a virtual one. So the
    two are swapped.
    """
    own = [*self._parameters.values(), *self._buffers.values()]
    virtual = any(isinstance(tensor, VirtualTensor) for tensor in own)
    if not virtual and not isinstance(fn(torch.empty(0)), VirtualTensor):
        return _module_apply(self, fn, recurse)
    for child in self.children() if recurse else ():
        child._apply(fn)
    for param in self._parameters.values():
        if param is None:
            continue
        with torch.no_grad():
            moved = fn(param)
        if moved is param:  # it is there already
            continue
        grad, param.grad = param.grad, None
        with torch.no_grad():
            new = nn.Parameter(moved, param.requires_grad)
            grad = None if grad is None else fn(grad)
        torch.utils.swap_tensors(param, new)
        param.grad = grad
    for name, buffer in self._buffers.items():
        self._buffers[name] = None if buffer is None else fn(buffer)
    return self


def as_tensor(data, dtype=None, device=None) -> torch.Tensor:
    """Share or copy, as torch.as_tensor; C++ would take any tensor of ours for here."""
    if isinstance(data, VirtualTensor):
        return data.to(device=device or data.device, dtype=dtype or data.dtype)
    return _as_tensor(data, dtype=dtype, device=device)


def pin_memory(self: torch.Tensor, device=None) -> torch.Tensor:
    """Return the tensor: all memory here is the host's. A DataLoader may ask for it."""
    return self


def rebuild_tensor(storage, offset, size, stride) -> torch.Tensor:
    """Rebuild a tensor from a file, on the virtual GPU that its storage was put on."""
    tensor = _rebuild_tensor(storage, offset, size, stride)
    home = current().home(storage._untyped_storage)
    return tensor if home is None else VirtualTensor(tensor, home)


def tag(storage) -> str | None:
    """Name the virtual GPU that a storage lies on, for torch.save."""
    home = current().home(storage)
    return None if home is None else str(home)


def restore(storage, location: str):
    """Put a storage that torch.load read on the virtual GPU that its tag names."""
    if not location.startswith("vgpu"):
        return None
    machine = current()
    home = machine.device(location)
    machine.adopt(storage, home)
    machine.copy(None, home, (storage.nbytes(),), storage.nbytes())
    return storage


class _NoNccl:
    @staticmethod
    def is_available(tensors) -> bool:
        return False


PATCHES = [
    (torch.Tensor, "to", to),
    (torch, "as_tensor", as_tensor),
    (torch.Tensor, "pin_memory", pin_memory),
    (nn.Module, "_apply", apply),
    (torch._utils, "_rebuild_tensor", rebuild_tensor),
    (torch._C, "_scatter", comm.scatter),
    (torch._C, "_gather", comm.gather),
    (torch._C, "_broadcast", comm.broadcast),
    (torch._C, "_broadcast_coalesced", comm.broadcast_coalesced),
    (nn.parallel.comm, "nccl", _NoNccl),
    (nn.parallel._functions, "_get_stream", face.current_stream),
    *((torch.accelerator, name, new) for name, new in face.ACCELERATOR.items()),
]
PACKAGE = (-1, tag, restore)  # asked before torch's own, which begin at 10
_before: list = []


def make() -> None:
    """Make all changes."""
    for owner, name, new in PATCHES:
        _before.append((owner, name, vars(owner).get(name, MISSING)))
        setattr(owner, name, new)
    torch.serialization.register_package(*PACKAGE)


def undo() -> None:
    """Take all changes back."""
    while _before:
        owner, name, old = _before.pop()
        if old is MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, old)
    torch.serialization._package_registry.remove(PACKAGE)
