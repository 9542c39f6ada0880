"""Parameters of a class that the reader has made, on a virtual GPU.

On CUDA, ``FlatParameter(data)`` is a FlatParameter, whatever device its data is on, and
stays one when it moves. Here a tensor's class is also what says that it is virtual, so
such an object gets a class that is both.
"""

import functools
from typing import Any

import torch
from torch import nn

from allranks.vgpu.tensor import VirtualTensor

PLAIN = torch.Tensor, nn.Parameter, nn.Buffer
_new_parameter = nn.Parameter.__new__


def is_own(cls: type) -> bool:
    """Tell whether a class of tensors is the reader's."""
    return cls not in PLAIN and not issubclass(cls, VirtualTensor)


@functools.cache
def both(cls: type) -> type:
    """Return a class whose tensors are virtual, with the methods of the reader's."""
    own = {"__module__": cls.__module__, "__init__": cls.__init__, "_on_host": cls}
    return type(cls)(cls.__name__, (VirtualTensor, cls), own)


def of_the_reader(old: type, new: type) -> type:
    """Return the class of an object that gets the contents of one of another class.

    Args:
        old: the object's own class.
        new: the other's: virtual if and only if ``old`` is not.
    """
    if is_own(old):
        return both(old)
    return getattr(old, "_on_host", new)


def new_parameter(
    cls: type, data: Any = None, requires_grad: bool = True
) -> torch.Tensor:
    """Make a parameter, of the reader's class if it is one."""
    made = _new_parameter(cls, data, requires_grad)
    if isinstance(made, VirtualTensor) and is_own(cls):
        made.__class__ = both(cls)
    return made


def as_own(tensor: VirtualTensor, cls: type) -> torch.Tensor:
    """Give a new tensor a class of the reader's, if it is one without data of its own.

    A class that carries out ops itself is left out, as it holds other tensors.
    """
    cls = getattr(cls, "_on_host", cls)
    plain = cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    if is_own(cls) and plain and not issubclass(cls, nn.Parameter):
        tensor.__class__ = both(cls)
    return tensor


def as_subclass(self: VirtualTensor, cls: type) -> torch.Tensor:
    """Return a view of the reader's class, as Tensor.as_subclass does."""
    return as_own(self.view(self.shape), cls)


VirtualTensor.as_subclass = as_subclass
