"""Ops whose kernels for fp16 take the CPU hundreds of times as long as those for fp32.

They compute in fp32 and round once, which is also what a GPU does.
"""

from typing import Any

import torch
from torch.utils import _pytree as pytree

aten = torch.ops.aten
SLOW = {aten.convolution.default, aten.convolution_backward.default}


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an op on tensors of the host."""
    if func not in SLOW or args[0].dtype != torch.float16:
        return func(*args, **kwargs)
    wide = pytree.tree_map_only(torch.Tensor, lambda t: t.float(), args)
    made = func(*wide, **kwargs)
    return pytree.tree_map_only(torch.Tensor, lambda t: t.half(), made)
