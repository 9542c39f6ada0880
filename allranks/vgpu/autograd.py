"""What CUDA's autograd engine ensures: that gradients are where their tensors are.

The engine takes virtual tensors for CPU tensors. So its check of devices passes where
it should not, and zeros that it makes itself are plain CPU tensors. Both are corrected
here.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, Function
from torch.autograd.graph import Node

from allranks.vgpu import device_module
from allranks.vgpu.autocast import cpu_off
from allranks.vgpu.machine import Device
from allranks.vgpu.new_tensors import NewTensors, enters_torch
from allranks.vgpu.tensor import VirtualTensor

_apply = vars(Function)["apply"]  # of Python up to torch 2.13, of C in 2.15
_apply_backward = BackwardCFunction.apply
_make_grads = torch.autograd._make_grads
_engine = torch.autograd._engine_run_backward
INVALID = "invalid gradient at index {} - expected device {} but got {}"


def home_of(node: Node) -> Device | None:
    """Return the device of a node of the graph, to which its gradients go.

    Copies between devices are Functions, and these know the devices of what they
    returned. So all nodes up to the next Function, or up to a leaf, are on one device.
    """
    seen, rest = set(), [(node, 0)]
    while rest:
        node, index = rest.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf, noted = getattr(node, "variable", None), getattr(node, "_homes", None)
        if noted is not None:
            return noted[1][index]
        if isinstance(leaf, VirtualTensor):
            return leaf._home
        if leaf is None or leaf.dim() == 0:  # a number may be anywhere: look further
            rest += node.next_functions
    return None


def _current_home() -> Device | None:
    node = torch._C._current_autograd_node()
    if node is None or isinstance(node, BackwardCFunction):
        return None  # apply_backward knows its device
    return home_of(node)


enters_torch(_engine)


def run_engine(
    tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any
) -> tuple[torch.Tensor | None, ...]:
    """Run backward, and put zeros that the engine makes on their node's device."""
    with contextlib.ExitStack() as stack:
        if torch.is_autocast_enabled("cpu") and _is_virtual(tensors):
            stack.enter_context(cpu_off())
        stack.enter_context(NewTensors(VirtualTensor, _current_home))
        # Python code that the engine calls (a Function, a checkpoint) is checked as
        # everywhere else.
        stack.enter_context(torch._C._EnableTorchFunction())
        return _engine(tensors, *args, **kwargs)


def _is_virtual(roots: Sequence[torch.Tensor]) -> bool:
    """Tell whether a graph has anything on a virtual GPU."""
    seen, rest = set(), [getattr(root, "grad_fn", None) for root in roots]
    while rest:
        node = rest.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        homes = getattr(node, "_homes", ((), ()))[1]
        if any(homes) or isinstance(getattr(node, "variable", None), VirtualTensor):
            return True
        rest += [following for following, _ in node.next_functions]
    return any(isinstance(root, VirtualTensor) for root in roots)


def make_grads(
    outputs: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    is_grads_batched: bool,
) -> tuple[torch.Tensor | None, ...]:
    """Check that each of the first gradients is on the device of its output."""
    for index, (out, grad) in enumerate(zip(outputs, grads, strict=False)):
        if not (isinstance(out, torch.Tensor) and isinstance(grad, torch.Tensor)):
            continue
        if grad.device != out.device and grad.dim() > 0:
            raise RuntimeError(INVALID.format(index, out.device, grad.device))
    return _make_grads(outputs, grads, is_grads_batched)


def apply_forward(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
    """Run a Function, and note the devices of its inputs and outputs."""
    out = _apply.__get__(None, cls)(*args, **kwargs)
    outs = out if isinstance(out, tuple) else (out,)
    if not any(isinstance(one, VirtualTensor) for one in (*args, *outs)):
        return out
    for one in outs:
        node = one.grad_fn if isinstance(one, torch.Tensor) else None
        if getattr(node, "_forward_cls", None) is cls:
            node._homes = (
                [getattr(one, "device", None) for one in args],
                [getattr(one, "_home", None) for one in outs],
            )
            break
    return out


def apply_backward(self: BackwardCFunction, *grads: torch.Tensor | None) -> Any:
    """Run a Function's backward; refuse gradients on another device, as CUDA does."""
    noted = getattr(self, "_homes", None)
    if noted is None:
        return _apply_backward(self, *grads)
    places, homes = noted
    grads = [
        VirtualTensor(grad, home)  # the engine made these zeros for an unused output
        if home is not None and type(grad) is torch.Tensor
        else grad
        for grad, home in zip(grads, homes, strict=True)
    ]
    home = next((home for home in homes if home and not home.is_host), None)
    # In the engine's thread for a device, that device is the current one.
    with device_module.module.device(getattr(home, "index", None)):
        made = _apply_backward(self, *grads)
    found = list(made) if isinstance(made, tuple) else [made]
    for at, (grad, where) in enumerate(zip(found, places, strict=False)):
        if not isinstance(grad, torch.Tensor) or grad.device == where:
            continue
        if grad.dim() > 0:
            index = len([place for place in places[:at] if place is not None])
            said = INVALID.format(index, where, grad.device)
            raise RuntimeError(f"Function {type(self).__name__} returned an {said}")
        found[at] = grad.to(where)  # a number may be anywhere
    return tuple(found) if isinstance(made, tuple) else found[0]
