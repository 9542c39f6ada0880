"""The mode that puts what C++ makes "where the input is" on the right virtual GPU."""

import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from allranks.vgpu.machine import Device

_callers: set[types.CodeType] = set()  # code of the functions that call torch's C++


def enters_torch(function: Callable) -> Callable:
    """Mark a function that calls C++ itself; only what it makes is put on a device.

    Python code that C++ calls back (a checkpoint that computes again, a hook that saves
    on the host) may want CPU tensors, and then the caller of the op is another frame.
    """
    _callers.add(function.__code__)
    return function


class NewTensors(TorchDispatchMode):
    """Puts each plain tensor that is made from no other tensor on a device.

    C++ takes a virtual tensor for a CPU tensor. So a function such as ``pad_sequence``,
    or the gradient of ``sgn``, makes a plain tensor "where the input is", which it
    thinks is the CPU. While such a function runs, this mode puts new tensors on the
    inputs' device.

    Args:
        cls: the class of virtual tensors.
        find_home: returns the device, or None to leave a tensor where it is.
        by_anybody: whether also what is made far below counts, as in DDP's reducer, and
            not only what a function makes that is marked as entering C++.
    """

    def __init__(
        self,
        cls: type[torch.Tensor],
        find_home: Callable[[], Device | None],
        by_anybody: bool = False,
    ) -> None:
        super().__init__()
        self.cls, self.find_home, self.by_anybody = cls, find_home, by_anybody

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch adds a frame of its own, and is slower

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():  # because torch itself calls
            made = func(*args, **kwargs)
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        called = self.by_anybody or sys._getframe(1).f_code in _callers
        if not called or any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return made
        home = self.find_home()
        if home is None or type(made) is not torch.Tensor or not made.is_cpu:
            return made
        if made._is_zerotensor():  # it has no memory that could be on a device
            made = torch.zeros(made.shape, dtype=made.dtype)
        return self.cls(made, home)
