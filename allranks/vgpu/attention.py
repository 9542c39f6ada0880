"""Attention by a kernel that only GPUs have: the CPU computes the same."""

from collections.abc import Callable
from typing import Any

from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends, sdpa_kernel

OF_GPUS = {SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION}
OF_CPUS = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


def attend(func: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run scaled_dot_product_attention, also if no kernel of the CPU's is allowed."""
    allowed = set(_cur_sdpa_kernel_backends())
    if allowed & OF_GPUS and not allowed & {*OF_CPUS}:
        with sdpa_kernel(OF_CPUS):
            return func(*args, **kwargs)
    return func(*args, **kwargs)


def flex(func: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run flex_attention op by op, as it is defined; torch would compile its parts."""
    from torch._higher_order_ops.flex_attention import math_attention

    return math_attention(*args, **kwargs)


FUNCTIONS = {
    "scaled_dot_product_attention": attend,
    "flex_attention": flex,
}
