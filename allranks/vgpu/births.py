"""Tensors that torch's C++ makes in the middle of a function: they belong to a device.

C++ takes a virtual tensor for a CPU tensor. So a function such as ``pad_sequence``, or
the gradient of ``sgn``, makes a plain tensor "where the input is": on the CPU. While
such a function runs, a mode gives what is born the device of the function's inputs.
"""

import sys

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_callers: set = set()  # code objects that enter torch's C++: see ``births_here``


def births_here(function):
    """Mark a function that calls C++ itself: only what it asks for is given a home.

    Python that C++ calls back (a checkpoint that computes again, a hook that saves on
    the host) may want CPU tensors; then the caller of the op is another frame.
    """
    _callers.add(function.__code__)
    return function


class Births(TorchDispatchMode):
    """Give each plain tensor that is made out of nothing to a device.

    Args:
        cls: the class of virtual tensors.
        find_home: returns the device, or None to leave a tensor where it is.
    """

    def __init__(self, cls, find_home):
        super().__init__()
        self.cls, self.find_home = cls, find_home

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch puts a frame of its own between, and is slower

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():  # it is torch that calls
            made = func(*args, **kwargs)
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        called = sys._getframe(1).f_code in _callers
        if not called or any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return made
        home = self.find_home()
        if home is None or type(made) is not torch.Tensor or not made.is_cpu:
            return made
        if made._is_zerotensor():  # has no memory that could lie anywhere
            made = torch.zeros(made.shape, dtype=made.dtype)
        return self.cls(made, home)
