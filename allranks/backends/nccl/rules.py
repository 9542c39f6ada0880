"""What NCCL, and c10d for it, demand of tensors and of reductions.

Each error is the sentence that a job on GPUs would have ended with, of the same type.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from allranks.vgpu.machine import Device
from allranks.vgpu.tensor import VirtualTensor

FLOAT8 = {
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
}
DTYPES = {
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.bool: "Bool",
} | dict.fromkeys(FLOAT8, "Float8")
NAMES = {torch.int16: "Short", torch.complex64: "ComplexFloat"}
NAMES |= {torch.complex128: "ComplexDouble", torch.complex32: "ComplexHalf"}
NAMES |= {torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64"}
FORMATS = torch.contiguous_format, torch.channels_last, torch.channels_last_3d
RANKS_OF_FORMAT = {torch.channels_last: 4, torch.channels_last_3d: 5}
BITWISE = ("BAND", "BOR", "BXOR")


def check(tensors: Sequence[torch.Tensor], message: bool = False) -> list[Device]:
    """Raise unless all tensors are on GPUs, dense, contiguous, and of one known dtype.

    Args:
        tensors: of one call.
        message: whether it is a send or a receive, which may have gaps.

    Returns:
        The devices that they are on.

    Raises:
        ValueError: if one is not on a GPU, or has gaps.
        TypeError: if NCCL does not know the dtype, or there are several.
    """
    for tensor in tensors:
        # In the order of c10d's own checks: the first broken rule is the one that is
        # named.
        if not isinstance(tensor, VirtualTensor):
            raise ValueError("Tensors must be CUDA and dense")
        if not _is_contiguous(tensor):
            if not message:
                raise ValueError("Tensors must be contiguous")
            warnings.warn(
                "Detected non-contiguous tensor in P2P operations. It is user "
                "responsibility to guarantee that source and destination tensors have "
                "the same contiguity format.",
                stacklevel=2,
            )
        if tensor.dtype not in DTYPES:
            name = NAMES.get(tensor.dtype, str(tensor.dtype))
            raise TypeError(
                "Input tensor data type is not supported for NCCL process group: "
                f"{name}"
            )
        if tensor.dtype != tensors[0].dtype:
            raise TypeError("Tensors must have identical type")
    return [tensor._home for tensor in tensors]


def check_device(homes: Sequence[Device], bound: torch.device | None) -> Device:
    """Raise unless all tensors of a call are on one device, which is the group's.

    Args:
        homes: where the tensors are.
        bound: the device that ``init_process_group(device_id=...)`` named, if any.

    Raises:
        ValueError: if they are on several.
        DistBackendError: if it is another one than the group's.
    """
    home = homes[0]
    if any(other is not home for other in homes):
        raise ValueError("Expected list of tensors on the same device")
    if bound is not None and bound.index != home.index:
        raise dist.DistBackendError(
            "Attempt to perform collective on tensor not on device passed to "
            f"init_process_group (the tensor is on {home}, the group on {bound})"
        )
    return home


def check_reduction(op: Any, dtype: torch.dtype) -> None:
    """Raise unless NCCL has a reduction for a dtype.

    Args:
        op: a ``ReduceOp.RedOpType``.
        dtype: of what is reduced.

    Raises:
        ValueError: for the bitwise reductions.
        TypeError: for means of bools, and factors for anything but floats.
    """
    name = op.name
    if name in BITWISE:
        raise ValueError(f"Cannot use ReduceOp.{name} with NCCL")
    if dtype in FLOAT8:
        raise TypeError("Unsupported Float8 type for NCCL reduction")
    if name == "AVG" and dtype == torch.bool:
        raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if name == "PREMUL_SUM" and dtype not in floats:
        raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")


def _is_contiguous(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor fills its memory, in an order that torch has a name for."""
    inner = tensor._inner
    return any(
        inner.is_contiguous(memory_format=form)
        for form in FORMATS
        if RANKS_OF_FORMAT.get(form, inner.dim()) == inner.dim()
    )
