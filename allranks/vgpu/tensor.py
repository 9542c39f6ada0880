"""A tensor on a virtual GPU: a wrapper around a CPU tensor that reports another device.

The CPU runs each op on the CPU tensors inside, so the result is the CPU's to the last
bit. C++ takes the wrapper for a CPU tensor, too, so it picks the same algorithms and
the same autograd; only Python sees ``vgpu:1``.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Self

import torch
from torch.utils._mode_utils import no_dispatch

from allranks.vgpu import dispatch
from allranks.vgpu.machine import Device, Where, is_virtual
from allranks.vgpu.messages import refusal

OWN = {"_inner", "_home", "_is_param"}  # attributes of the class, not the user's


class VirtualTensor(torch.Tensor):
    """A tensor on a virtual GPU, made by ``.to("vgpu:0")`` or ``device="vgpu:0"``."""

    __module__ = "torch"  # tensorboardX takes a tensor only from there

    @staticmethod
    def __new__(cls: "type[VirtualTensor]", inner: torch.Tensor, home: Device) -> Self:
        if inner.layout != torch.strided or inner.is_quantized:
            kind = "quantized" if inner.is_quantized else inner.layout
            raise NotImplementedError(
                f"virtual GPUs hold no {kind} tensors: use dense ones here, or leave "
                "them out of the rehearsal"
            )
        home.machine.adopt(inner.untyped_storage(), home, inner.shape)
        self = torch.Tensor._make_subclass(cls, inner)  # the same memory
        self._inner, self._home = inner, home
        return self

    def __init__(self, inner: torch.Tensor, home: Device) -> None:
        pass

    @classmethod
    def __torch_function__(
        cls,
        func: Callable,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return dispatch.call(cls, func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls,
        func: torch._ops.OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():  # autograd's engine lacks it
            return dispatch.run(VirtualTensor, func, args, kwargs or {})

    @property
    def device(self) -> torch.device:
        """Return the device that it is on, such as ``vgpu:0``."""
        return torch.device(str(self._home))

    @property
    def is_cpu(self) -> bool:
        """Tell whether it is on the host, where only a dry run's may be."""
        return self._home.is_host

    @property
    def grad(self) -> torch.Tensor | None:
        """Return the gradient, which is on the same device."""
        return torch.Tensor.grad.__get__(self)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        if value is not None and value.device != self.device:
            raise RuntimeError(
                "assigned grad has data located on a different device: it is on "
                f"{value.device}, and the tensor on {self.device}"
            )
        torch.Tensor.grad.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def new_tensor(
        self,
        data: Any,
        dtype: torch.dtype | None = None,
        device: Where = None,
        requires_grad: bool = False,
    ) -> torch.Tensor:
        """Make a tensor from data, on this device unless another is named."""
        made = torch.as_tensor(data, dtype=dtype or self.dtype).detach().clone()
        return made.to(device or self.device).requires_grad_(requires_grad)

    def _settle(self, where: Where) -> torch.Tensor:
        """Return this new tensor as if it had been made elsewhere; log no copy."""
        where = torch.device(where)
        if not is_virtual(where):
            return self if self.is_cpu else self._inner.to(where, copy=True)
        home = self._home.machine.device(where)
        if home is self._home:
            return self
        return VirtualTensor(dispatch.kernels.clone(self._inner), home)

    def _follow(self) -> None:
        """Take over the size of the tensor inside, which an op has changed in place."""
        inner = self._inner
        if self.shape == inner.shape and self.stride() == inner.stride():
            return
        try:
            self._home.machine.recount(inner.untyped_storage())
        except torch.OutOfMemoryError:
            inner.resize_(self.shape)
            raise
        with torch._C.DisableTorchFunctionSubclass(), no_dispatch():
            torch.Tensor.set_(self, inner)

    def new(self, *args: Any, device: Where = None, **kwargs: Any) -> torch.Tensor:
        """Make a tensor from sizes or data, on this device unless another is named."""
        made = self._inner.new(*args, **kwargs)
        return VirtualTensor(made, self._home)._settle(device or self.device)

    def cpu(
        self, memory_format: torch.memory_format = torch.preserve_format
    ) -> torch.Tensor:
        """Copy to the host."""
        return self.to("cpu", memory_format=memory_format)

    def cuda(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Raise what torch raises, since a virtual GPU is not a CUDA device."""
        torch.cuda._lazy_init()  # which C++ leaves out after a machine of cuda's
        return torch.empty(0).cuda(*args, **kwargs)

    def get_device(self) -> int:
        """Return the device's index."""
        return self._home.index

    def type(self, dtype: Any = None, **kwargs: Any) -> str | torch.Tensor:
        """Name the type, or convert to one."""
        if dtype is None:
            return self._inner.type().replace(
                "torch.", f"torch.{self._home.machine.kind}."
            )
        return self.to(dtype if isinstance(dtype, torch.dtype) else dtype.dtype)

    def type_as(self, other: torch.Tensor) -> torch.Tensor:
        """Convert to another tensor's dtype and device."""
        return self.to(other.device, other.dtype)

    def numpy(self, **kwargs: Any) -> NoReturn:
        """Raise what torch raises for any tensor that is not on the host."""
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        self.numpy()

    def tolist(self) -> Any:
        """Copy to the host, as nested lists or as one number."""
        return self.detach().cpu().tolist()

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self._inner.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the storage of the tensor inside."""
        return self._inner.untyped_storage()

    def record_stream(self, stream: Any) -> None:
        """Do nothing, as there is one stream per device."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse, since another library would take the host's memory for a GPU's."""
        raise NotImplementedError(refusal(f"from_dlpack of a tensor on {self.device}"))

    def share_memory_(self) -> Self:
        """Do nothing: any process can open a GPU's memory."""
        return self

    def is_shared(self) -> bool:
        """Tell that any process can open it."""
        return True

    def set_(self, source: Any = None, *args: Any) -> Self:
        """Take over the memory of another tensor on the same device, as FSDP asks."""
        storage = getattr(source, "_untyped_storage", source)
        if isinstance(storage, torch.UntypedStorage):
            home = self._home.machine.home(storage)
            with torch._C.DisableTorchFunctionSubclass():
                inner = torch.empty(0, dtype=self.dtype, device="cpu")
                inner = inner.set_(storage, *args)
        else:
            home, inner = getattr(source, "_home", None), source._inner.detach()
        if home is not self._home:
            raise RuntimeError(
                f"set_ takes memory of {self.device}, not of {source.device}"
            )
        self._inner = inner
        with torch._C.DisableTorchFunctionSubclass(), no_dispatch():
            torch.Tensor.set_(self, self._inner)
        return self

    def _typed_storage(self) -> torch.TypedStorage:
        """Return the storage of the tensor inside, with its dtype."""
        return self._inner._typed_storage()

    def __repr__(self, **kwargs: Any) -> str:
        text = repr(self._inner).removesuffix(")") + f", device='{self.device}'"
        if self.grad_fn is not None:
            text += f", grad_fn=<{type(self.grad_fn).__name__}>"
        elif self.requires_grad:
            text += ", requires_grad=True"
        kind = "Parameter containing:\n" if self._is_parameter() else ""
        return f"{kind}{text})"

    def __format__(self, spec: str) -> str:
        return format(self.item() if self.dim() == 0 else repr(self), spec)

    def _is_parameter(self) -> bool:
        return getattr(self, "_is_param", False)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            if not self.is_leaf:
                return super().__deepcopy__(memo)  # raises: only leaves can
            if self._is_parameter():  # which torch copies without gradient and marks
                made = getattr(self, "_on_host", torch.nn.Parameter)
                memo[id(self)] = made(self.detach().clone(), self.requires_grad)
                return memo[id(self)]
            with torch._C.DisableTorchFunctionSubclass():
                inner = copy.deepcopy(self._inner.detach(), memo)  # views stay views
            new = VirtualTensor(inner, self._home).requires_grad_(self.requires_grad)
            memo[id(self)] = new
            new.grad = copy.deepcopy(self.grad, memo)
            vars(new).update(copy.deepcopy(self._marks(), memo))
        return memo[id(self)]

    def __reduce_ex__(self, protocol: int) -> tuple[Callable, tuple]:
        """Pickle it as torch does on any device, with a storage that is tagged."""
        marks = self._marks()
        if self._is_parameter():
            parts = self.detach(), self.requires_grad, OrderedDict()
            if marks:
                return torch._utils._rebuild_parameter_with_state, (*parts, marks)
            return torch._utils._rebuild_parameter, parts
        inner = self._inner
        storage = torch.storage.TypedStorage(
            wrap_storage=inner.untyped_storage(), dtype=inner.dtype, _internal=True
        )
        view = inner.storage_offset(), tuple(inner.shape), inner.stride()
        parts = (storage, *view, self.requires_grad, OrderedDict())
        if marks:
            how = torch._utils._rebuild_tensor_v2, torch.Tensor, parts, marks
            return torch._tensor._rebuild_from_type_v2, how
        return torch._utils._rebuild_tensor_v2, parts

    def _marks(self) -> dict[str, Any]:
        """Return the attributes that the user has put on it."""
        return {key: value for key, value in vars(self).items() if key not in OWN}
