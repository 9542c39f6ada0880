"""NCCL's reductions by means of gloo's: or, means of integers, and factors."""

from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from allranks.backends.nccl import factors, rules

RedOp = c10d.ReduceOp.RedOpType


def reduction(op: Any, dtype: torch.dtype) -> tuple[c10d.ReduceOp, Any]:
    """Return the reduction that gloo has for NCCL's, and a factor to begin with.

    Args:
        op: c10d's, as its ops get it.
        dtype: of the numbers.

    Returns:
        The reduction, and the factor of a PREMUL_SUM (a number, or a tensor), or None.

    Raises:
        ValueError, TypeError: as ``rules.check_reduction``.
    """
    kind = RedOp(op.op())
    rules.check_reduction(kind, dtype)
    factor = None
    if kind == RedOp.PREMUL_SUM:
        kind, factor = RedOp.SUM, factors.last()
        factor = getattr(factor, "_inner", factor)
    if dtype == torch.bool and kind == RedOp.SUM:
        kind = RedOp.MAX  # c10d asks NCCL, which adds bools as bytes, for an or
    if kind == RedOp.AVG and not dtype.is_floating_point:
        kind = RedOp.SUM  # gloo divides floats only: see divide
    return c10d.ReduceOp(kind), factor


def named(op: Any) -> str:
    """Return a reduction's name in lower case."""
    return RedOp(op.op()).name.lower()


def divide(work: Any, op: Any, row: torch.Tensor, size: int) -> list[Any] | Any:
    """Return the work, or, for a mean of whole numbers, end it here and divide."""
    if RedOp(op.op()) != RedOp.AVG or row.dtype.is_floating_point:
        return work
    work.wait()
    row.copy_(row.div(size, rounding_mode="trunc"))  # as ncclAvg does
    return None
