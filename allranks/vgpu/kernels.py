"""How the CPU computes what a GPU would, and where CUDA has other kernels than it.

In 16 bits, what the CPU lacks, or takes hundreds of times as long for as for 32, is
computed in fp32 and rounded once, which is also what a GPU does. Attention that only
GPUs have a kernel for is computed by the CPU's own.

Nothing else computes: whoever wants the shapes alone puts functions of its own in place
of ``run``, ``make``, ``clone`` and ``land``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends, sdpa_kernel
from torch.utils import _pytree as pytree

from allranks.vgpu.machine import Machine, kind
from allranks.vgpu.messages import refusal

aten = torch.ops.aten
SLOW = {aten.convolution.default, aten.convolution_backward.default}  # in fp16
MISSING = {  # in 16 bits
    aten.avg_pool3d.default,
    aten.avg_pool3d_backward.default,
    aten.multi_margin_loss.default,
    aten.multi_margin_loss_backward.default,
}
FLOATING = {  # what CUDA has for floating-point numbers only, and its kernels' names
    aten.mm.default: "addmm_cuda",
    aten.addmm.default: "addmm_cuda",
    aten.bmm.default: "baddbmm_cuda",
    aten.baddbmm.default: "baddbmm_cuda",
    aten.mv.default: "addmv_impl_cuda",
    aten.dot.default: "dot",
}
NAMES = {torch.int64: "Long", torch.int32: "Int", torch.int16: "Short"}
NAMES |= {torch.int8: "Char", torch.uint8: "Byte", torch.bool: "Bool"}
HALF = torch.float16, torch.bfloat16
SDPA_OF_GPUS = {SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION}
SDPA_OF_CPUS = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
NO_KERNEL = "'CPU' backend"  # in torch's words for an op that has none here


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an op on tensors of the host.

    Raises:
        RuntimeError: in CUDA's words, for a dtype that its kernel does not take.
        NotImplementedError: for an op that has a kernel for GPUs only.
    """
    dtype = getattr(args[0], "dtype", None) if args else None
    if (dtype == torch.float16 and func in SLOW) or (dtype in HALF and func in MISSING):
        return _in_fp32(func, args, kwargs, dtype)
    if func in FLOATING and dtype in NAMES and kind() == "cuda":
        told = f'"{FLOATING[func]}" not implemented for'
        raise RuntimeError(f"{told} '{NAMES[dtype]}'")
    try:
        return func(*args, **kwargs)
    except NotImplementedError as error:
        if NO_KERNEL not in str(error):
            raise
        what = f"{func.name().partition('.')[0]}, which has a kernel for CUDA only,"
        raise NotImplementedError(refusal(what)) from None


def make(factory: Callable, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """Make a tensor of the host, as torch.zeros does."""
    return factory(*args, device="cpu", **kwargs)


def clone(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format
) -> torch.Tensor:
    """Return a copy of a tensor of the host."""
    return tensor.clone(memory_format=memory_format)


def land(tensor: torch.Tensor, machine: Machine) -> torch.Tensor:
    """Return a tensor that came from a GPU as the host gets it."""
    return tensor


def _in_fp32(func: Callable, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    wide, more = pytree.tree_map_only(
        torch.Tensor, lambda t: t.float() if t.dtype == dtype else t, (args, kwargs)
    )
    made = func(*wide, **more)
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to(dtype), made)


def attend(func: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run scaled_dot_product_attention, also if no kernel of the CPU's is allowed."""
    allowed = set(_cur_sdpa_kernel_backends())
    if allowed & SDPA_OF_GPUS and not allowed & {*SDPA_OF_CPUS}:
        with sdpa_kernel(SDPA_OF_CPUS):
            return func(*args, **kwargs)
    return func(*args, **kwargs)


def flex(func: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run flex_attention op by op, as it is defined; torch would compile its parts."""
    from torch._higher_order_ops.flex_attention import math_attention

    return math_attention(*args, **kwargs)


ATTENTION = {
    "scaled_dot_product_attention": attend,
    "flex_attention": flex,
}
