"""``torch.cuda.FloatTensor`` and its like, which older scripts make tensors with."""

from typing import Any, NoReturn

import torch

from allranks.vgpu.machine import Where
from allranks.vgpu.tensor import VirtualTensor

_own_type = torch.Tensor.type
_own_default = torch.set_default_tensor_type


class TensorType:
    """A dtype on a GPU: it makes tensors, converts them, and recognizes them.

    Args:
        name: as ``torch.cuda`` has it, such as "FloatTensor".
    """

    is_cuda, is_sparse, layout = True, False, torch.strided
    __module__ = "torch.cuda"

    def __init__(self, name: str) -> None:
        self.__name__, self.dtype = name, getattr(torch, name).dtype

    def __call__(self, *args: Any, device: Where = None) -> torch.Tensor:
        """Make a tensor from sizes, or from data."""
        made = torch.empty(0, dtype=self.dtype, device="cpu").new(*args)
        return made.to("cuda" if device is None else device)

    def __instancecheck__(self, thing: object) -> bool:
        return (
            isinstance(thing, VirtualTensor)
            and thing.dtype == self.dtype
            and thing.is_cuda
        )

    def __repr__(self) -> str:
        return f"<class 'torch.cuda.{self.__name__}'>"


TYPES = {
    f"torch.cuda.{name}": TensorType(name)
    for name in sorted(vars(torch.cuda))
    if name.endswith("Tensor")
}


def convert(
    self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any
) -> Any:
    """Name a tensor's type, or convert to one, which may be on another device.

    Args:
        self: the tensor.
        dtype: a dtype, a type such as ``torch.cuda.FloatTensor``, or a type's name.
        non_blocking: as ``Tensor.to`` has it.
        **kwargs: what torch passes on.

    Raises:
        ValueError: as torch, for a name that it does not know.
    """
    # torch's own C++ sees a CPU tensor here, so it can neither name a type of CUDA nor
    # leave the GPU where a name such as torch.FloatTensor asks for the host.
    virtual = isinstance(self, VirtualTensor)
    kind = TYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if kind is None and virtual:
        return self._inner.type().replace("torch.", "torch.cuda.")
    if isinstance(kind, TensorType):
        where = self.device if virtual else "cuda"
        return self.to(where, kind.dtype, non_blocking)
    if not virtual or kind is None:
        return _own_type(self, dtype, non_blocking, **kwargs)
    if isinstance(kind, torch.dtype):
        return self.to(kind)
    if isinstance(kind, str):
        kind = getattr(torch, kind.removeprefix("torch."), None)
        if not isinstance(getattr(kind, "dtype", None), torch.dtype):
            raise ValueError(f"invalid type: '{dtype}'")
    return self.to("cpu", kind.dtype)


def set_default_tensor_type(kind: Any) -> None:
    """Let new tensors be of a type, on the GPU if the type is."""
    kind = TYPES.get(kind, kind) if isinstance(kind, str) else kind
    if isinstance(kind, TensorType):
        torch.set_default_device("cuda")
        torch.set_default_dtype(kind.dtype)
    else:
        torch.set_default_device(None)
        _own_default(kind)


def no_storage(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
    """Refuse ``torch.cuda.FloatStorage(3)``; a tensor's own storage is there."""
    raise NotImplementedError(
        f"torch.cuda.{cls.__name__} makes no storage in a rehearsal: make a tensor, "
        "and take its untyped_storage()"
    )


PATCHES = [
    (torch.Tensor, "type", convert),
    (VirtualTensor, "type", convert),
    (torch, "set_default_tensor_type", set_default_tensor_type),
    *((torch.cuda, kind.__name__, kind) for kind in TYPES.values()),
    *(
        (thing, "__new__", staticmethod(no_storage))
        for name, thing in vars(torch.cuda).items()
        if name.endswith("Storage")
    ),
]
