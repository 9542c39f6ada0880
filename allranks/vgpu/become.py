"""``tensor.data = other``: the same object, another tensor inside.

torch's own C++ sets one CPU tensor's data to another's. A plain tensor and a virtual
one differ in their Python class, so the two are swapped; all that hangs on the object
(hooks, attributes, the gradient) stays. ``nn.Module.to`` is made of this.
"""

import torch
from torch.utils._mode_utils import no_dispatch

from allranks.vgpu.tensor import VirtualTensor

_data, _grad = torch._C.TensorBase.data, torch._C.TensorBase.grad
OWN = {"_inner", "_home", "_is_param"}  # what is the class's, not the user's


def get_data(self: torch.Tensor) -> torch.Tensor:
    """Return the same memory without autograd."""
    if isinstance(self, VirtualTensor):
        return VirtualTensor(_data.__get__(self._inner), self._home)
    return _data.__get__(self)


def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
    """Let a tensor be another one: of any device, dtype and shape, as on CUDA."""
    mine, other = (isinstance(t, VirtualTensor) for t in (self, value))
    with torch._C.DisableTorchFunctionSubclass():
        if mine == other:
            _data.__set__(self, value)
            if mine:
                self._inner, self._home = value._inner, value._home
            return
        grad = _grad.__get__(self)  # torch refuses to swap while it is held
        _grad.__set__(self, None)
        try:
            _swap(self, value.detach())
        finally:
            if grad is not None and grad.dtype == self.dtype:
                _grad.__set__(self, grad)  # else nn.Module.to will set the new one


def _swap(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Swap the contents of two tensors, and hand the user's things back.

    Unlike torch.utils.swap_tensors it works while a graph, or a weak reference, knows
    the tensor, as setting ``.data`` does. The old graph cannot be used any more.
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
        edge.node.register_prehook(_refuse)
    tensor.__class__, new.__class__ = new.__class__, tensor.__class__
    tensor.__dict__, new.__dict__ = new.__dict__, tensor.__dict__
    torch._C._swap_tensor_impl(tensor, new)
    vars(tensor).update(kept)


def _refuse(grads):
    raise RuntimeError(
        "backward through a graph whose leaf has moved to another device since: "
        "run forward again after the move"
    )


VirtualTensor.data = data = property(get_data, set_data)
