"""How tensors get to another device: ``.to``, ``.data = other``, and DataParallel.

``.to`` makes a copy, which is counted, and backward copies the gradient back. ``.data =
other`` puts another tensor into the same object, which is how ``nn.Module.to`` works.
Scatter, broadcast and gather are what torch's own nn.DataParallel calls in C++; a CUDA
build has them in ``torch._C``, and the CPU build lacks them.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._mode_utils import no_dispatch

from allranks.vgpu import kernels, lazy
from allranks.vgpu.machine import Machine, current, is_virtual, kind
from allranks.vgpu.subclasses import as_own, of_the_reader
from allranks.vgpu.tensor import OWN, VirtualTensor

_tensor_to = torch.Tensor.to
_data, _grad = torch._C.TensorBase.data, torch._C.TensorBase.grad
ASIDE = "_grad_of_another_shape"  # the attribute under which it waits


class Move(torch.autograd.Function):
    """Copy a tensor to another device, and its gradient back."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        target: torch.device,
        machine: Machine,
        wait: bool,
    ) -> torch.Tensor:
        """Copy to the target."""
        ctx.way_back = tensor.device, machine, wait
        return move(tensor, target, machine, wait)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Copy the gradient to where the tensor came from."""
        return Move.apply(grad, *ctx.way_back), None, None, None


def move(
    tensor: torch.Tensor, target: torch.device, machine: Machine, wait: bool = True
) -> torch.Tensor:
    """Return a copy on another device, without autograd."""
    inner = tensor._inner if isinstance(tensor, VirtualTensor) else tensor
    home = machine.device(target) if is_virtual(target) else None
    made = kernels.clone(inner)
    out = kernels.land(made, machine) if home is None else VirtualTensor(made, home)
    if home is not None and home is not getattr(tensor, "_home", None):
        out = as_own(out, type(tensor))
    source = tensor._home if isinstance(tensor, VirtualTensor) else None
    machine.copy(source, home, inner.shape, inner.nbytes, wait, (inner, made))
    return out


def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Convert dtype or device, as Tensor.to does, and count copies between devices."""
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, VirtualTensor):
        kwargs.pop("other", None)
        args = (other.device, other.dtype, *args[1:])
    if len(args) > 2 and isinstance(args[-2], bool):  # (…, non_blocking, copy)
        kwargs, args = kwargs | {"copy": args[-1]}, args[:-1]
    known = {k: kwargs[k] for k in kwargs if k != "copy"}  # which _parse_to refuses
    device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **known)
    virtual = isinstance(self, VirtualTensor)
    fake = isinstance(self, FakeTensor)
    if device is None or fake or not (virtual or is_virtual(device)):
        return _tensor_to(self, *args, **kwargs)
    if is_virtual(device):
        if kind() == "cuda":
            torch.cuda._lazy_init()  # as any use of a device does
        device = torch.device(str(current().device(device)))
    elif device.type == "meta":
        return self._inner.to(device, dtype or self.dtype)
    elif device.type != "cpu":
        return _tensor_to(torch.empty(0), device)  # raises what torch raises
    if is_lazy(self):
        return lazy.to(self, device, dtype)
    options = {k: kwargs[k] for k in ("copy", "memory_format") if k in kwargs}
    if device == self.device:
        return _tensor_to(self, dtype=dtype or self.dtype, **options)
    if dtype not in (None, self.dtype):  # converted before the copy, as CUDA does it
        self = _tensor_to(self, dtype)
    machine = self._home.machine if virtual else current()
    moved = Move.apply(self, device, machine, not non_blocking)
    options.pop("copy", None)
    return _tensor_to(moved, dtype=moved.dtype, **options) if options else moved


def get_grad(self: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient, also one of another shape than the data that is set now."""
    aside = vars(self).get(ASIDE)
    return _grad.__get__(self) if aside is None else aside


def set_grad(self: torch.Tensor, value: torch.Tensor | None) -> None:
    """Set the gradient, or forget it.

    C++ frees the one before while it can still be read, and who is told of a free may
    read it. So it is freed here, a moment later.
    """
    vars(self).pop(ASIDE, None)
    before = _grad.__get__(self) if self.is_leaf else None
    _grad.__set__(self, value)
    del before


def forget_grad(self: torch.Tensor) -> None:
    """Do what ``del`` does with a gradient."""
    set_grad(self, None)


def get_data(self: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the same memory, without autograd."""
    if isinstance(self, VirtualTensor):
        return VirtualTensor(_data.__get__(self._inner), self._home)
    return _data.__get__(self)


def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
    """Put another tensor, of any device, dtype and shape, into an object, as on CUDA.

    Between two tensors of one class, torch's own C++ does it. A plain tensor and a
    virtual one differ in their Python class, so the two are swapped, and everything
    that belongs to the object (hooks, attributes, the gradient) stays with it.
    """
    mine, other = (isinstance(t, VirtualTensor) for t in (self, value))
    with torch._C.DisableTorchFunctionSubclass():
        grad = vars(self).pop(ASIDE, None)
        if mine == other:
            _data.__set__(self, value)
            if mine:
                self._inner, self._home = value._inner, value._home
            _give_back(self, grad)
            return
        grad = _grad.__get__(self) if grad is None else grad
        _grad.__set__(self, None)  # torch refuses to swap a tensor that has one
        try:
            _swap(self, value.detach())
        finally:
            _give_back(self, grad)


def _give_back(tensor: torch.Tensor, grad: torch.Tensor | None) -> None:
    """Give a tensor its gradient again, at once or when it has that shape again.

    FSDP puts the whole on the host while it has the gradient of a shard. Of another
    dtype, nn.Module.to sets a new one.
    """
    if grad is None or grad.dtype != tensor.dtype:
        return
    if grad.shape == tensor.shape:
        _grad.__set__(tensor, grad)
    else:
        vars(tensor)[ASIDE] = grad


def _swap(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Swap the contents of two tensors, except for what the user has put on them.

    Unlike torch.utils.swap_tensors, it works while a graph or a weak reference refers
    to the tensor, as setting ``.data`` does. The old graph cannot be used any more.
    """
    if isinstance(tensor, torch.nn.Parameter):
        new = torch.nn.Parameter(new, tensor.requires_grad)
    else:
        new.requires_grad_(tensor.requires_grad)
    new._backward_hooks = tensor._backward_hooks
    new._post_accumulate_grad_hooks = tensor._post_accumulate_grad_hooks
    kept = {key: value for key, value in vars(tensor).items() if key not in OWN}
    if tensor.requires_grad:
        with no_dispatch():
            edge = torch.autograd.graph.get_gradient_edge(tensor)
        edge.node.register_prehook(_receiver(weakref.ref(tensor)))
    old = type(tensor)
    tensor.__class__, new.__class__ = of_the_reader(old, type(new)), old
    tensor.__dict__, new.__dict__ = new.__dict__, tensor.__dict__
    torch._C._swap_tensor_impl(tensor, new)
    vars(tensor).update(kept)


def _receiver(leaf: weakref.ref) -> Callable:
    """Return what takes the gradient that an old graph has for a leaf that has moved.

    FSDP moves its shards to the host between forward and backward, and back in time.
    """

    def receive(grads: tuple[torch.Tensor | None, ...]) -> tuple[None]:
        tensor, (grad,) = leaf(), grads
        if tensor is None or grad is None:
            return (None,)
        if (tensor.device, tensor.shape) != (grad.device, grad.shape):
            raise RuntimeError(
                "backward through a graph whose leaf has moved to another device "
                "since: run forward again after the move"
            )
        grad = grad.detach()
        tensor.grad = grad if tensor.grad is None else tensor.grad + grad
        return (None,)

    return receive


data = property(get_data, set_data)
grad = property(get_grad, set_grad, forget_grad)
# Plain tensors get these from ``patches`` while devices are plugged in. Virtual tensors
# keep them, because a tensor on a device that was unplugged can still be copied.
VirtualTensor.to, VirtualTensor.data = to, data


def _to_index(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Copy to a device (-1 is the host), or return the tensor if it is there."""
    machine = current()
    target = torch.device("cpu" if index == -1 else str(machine.device(index)))
    return tensor if tensor.device == target else move(tensor, target, machine)


def scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[Any] | None = None,
) -> list[torch.Tensor]:
    """Cut a tensor along a dimension, into a piece per device, or fewer if it is short.

    This needs no autograd, and neither do the functions below, because torch wraps each
    of them in a Function of its own.
    """
    pieces = (
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else tensor.split(list(chunk_sizes), dim)
    )
    return [_to_index(piece, i) for piece, i in zip(pieces, devices, strict=False)]


def gather(
    tensors: Sequence[torch.Tensor], dim: int, destination: int | None = None
) -> torch.Tensor:
    """Join tensors from several devices on one."""
    if destination is None:
        destination = current().device().index
    return torch.cat([_to_index(tensor, destination) for tensor in tensors], dim)


def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """Copy a tensor to each device."""
    return [_to_index(tensor, index) for index in devices]


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    """Copy tensors to each device, and return a list per device."""
    return [[_to_index(tensor, index) for tensor in tensors] for index in devices]
