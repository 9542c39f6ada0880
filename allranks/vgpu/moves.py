"""Copies between devices: what moves, is counted, and takes its gradient back."""

import torch

from allranks.vgpu.machine import current
from allranks.vgpu.tensor import VirtualTensor

_tensor_to = torch.Tensor.to


class Move(torch.autograd.Function):
    """Copy a tensor to another device; its gradient takes the way back."""

    @staticmethod
    def forward(ctx, tensor, target: torch.device, machine, wait: bool):
        """Copy to the target."""
        ctx.way_back = tensor.device, machine, wait
        return move(tensor, target, machine, wait)

    @staticmethod
    def backward(ctx, grad):
        """Copy the gradient to where the tensor came from."""
        return Move.apply(grad, *ctx.way_back), None, None, None


def move(tensor, target: torch.device, machine, wait=True) -> torch.Tensor:
    """Return a copy on another device, without autograd."""
    inner = tensor._inner if isinstance(tensor, VirtualTensor) else tensor
    home = machine.device(target) if target.type == "vgpu" else None
    made = inner.clone()
    out = made if home is None else VirtualTensor(made, home)
    machine.copy(getattr(tensor, "_home", None), home, inner.shape, inner.nbytes, wait)
    return out


def to(self: torch.Tensor, *args, **kwargs) -> torch.Tensor:
    """Convert dtype or device, as Tensor.to: copies between devices are counted."""
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, VirtualTensor):
        kwargs.pop("other", None)
        args = (other.device, other.dtype, *args[1:])
    if len(args) > 2 and isinstance(args[-2], bool):  # (…, non_blocking, copy)
        kwargs, args = kwargs | {"copy": args[-1]}, args[:-1]
    known = {k: kwargs[k] for k in kwargs if k != "copy"}  # _parse_to refuses it
    device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **known)
    virtual = isinstance(self, VirtualTensor)
    if device is None or not (virtual or device.type == "vgpu"):
        return _tensor_to(self, *args, **kwargs)
    if device.type == "vgpu":
        device = torch.device(str(current().device(device)))
    elif device.type == "meta":
        return self._inner.to(device, dtype or self.dtype)
    elif device.type != "cpu":
        return _tensor_to(torch.empty(0), device)  # raises what torch raises
    options = {k: kwargs[k] for k in ("copy", "memory_format") if k in kwargs}
    if device == self.device:
        return _tensor_to(self, dtype=dtype or self.dtype, **options)
    if dtype not in (None, self.dtype):  # before the way, as CUDA does
        self = _tensor_to(self, dtype)
    machine = self._home.machine if virtual else current()
    moved = Move.apply(self, device, machine, not non_blocking)
    options.pop("copy", None)
    return _tensor_to(moved, dtype=moved.dtype, **options) if options else moved


VirtualTensor.to = to
