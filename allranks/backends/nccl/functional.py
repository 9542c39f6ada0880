"""The functional collectives, which DTensor calls: they return a tensor, no work.

Each has ended when it returns, so nothing is left for ``wait_tensor`` to wait for. As
in ``collectives``, the group's backend stands in place of the group, at the end.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from allranks.backends.nccl import collectives, exchanges
from allranks.backends.nccl.collectives import Tensor, Tensors
from allranks.backends.nccl.group import ProcessGroupNCCL
from allranks.vgpu import kernels


class Reduction:
    """A reduction by its functional name ("sum"), as c10d's ops take it.

    Args:
        name: in any case.
    """

    def __init__(self, name: str) -> None:
        self._kind = getattr(c10d.ReduceOp.RedOpType, name.upper())

    def op(self) -> Any:
        """Return the kind."""
        return self._kind


def _new(like: Tensor, rows: int) -> Tensor:
    """Return an empty tensor on the same device, with another number of rows."""
    shape = (rows, *like.shape[1:])
    return type(like)(torch.empty(shape, dtype=like.dtype), like._home)


def _whole(tensor: Tensor) -> Tensor:
    """Return a tensor without gaps, as the functional collectives make it."""
    inner = tensor._inner
    if inner.is_contiguous():
        return tensor
    return _copy(tensor)


def _copy(tensor: Tensor) -> Tensor:
    inner = kernels.clone(tensor._inner.detach(), torch.contiguous_format)
    return type(tensor)(inner, tensor._home)


def all_reduce(tensor: Tensor, op: str, nccl: ProcessGroupNCCL) -> Tensor:
    """Return the reduction over all ranks."""
    return all_reduce_(_copy(tensor), op, nccl)


def all_reduce_(tensor: Tensor, op: str, nccl: ProcessGroupNCCL) -> Tensor:
    """Replace a tensor by its reduction over all ranks."""
    collectives.allreduce_(nccl, [tensor], Reduction(op))[1].wait()
    return tensor


def all_reduce_coalesced(tensors: Tensors, op: str, nccl: ProcessGroupNCCL) -> Tensors:
    """Return several reductions."""
    return [all_reduce(tensor, op, nccl) for tensor in tensors]


def all_reduce_coalesced_(tensors: Tensors, op: str, nccl: ProcessGroupNCCL) -> Tensors:
    """Replace several tensors by their reductions."""
    return [all_reduce_(tensor, op, nccl) for tensor in tensors]


def broadcast(tensor: Tensor, root: int, nccl: ProcessGroupNCCL) -> Tensor:
    """Return the root's tensor."""
    return broadcast_(_copy(tensor), root, nccl)


def broadcast_(tensor: Tensor, root: int, nccl: ProcessGroupNCCL) -> Tensor:
    """Replace a tensor by that of the root."""
    collectives.broadcast_(nccl, [tensor], root)[1].wait()
    return tensor


def all_gather_into_tensor(tensor: Tensor, size: int, nccl: ProcessGroupNCCL) -> Tensor:
    """Return the tensors of all ranks, one below the other."""
    rows = (len(tensor) if tensor.dim() else 1) * size
    out = _new(tensor, rows)
    return all_gather_into_tensor_out(tensor, size, nccl, out=out)


def all_gather_into_tensor_out(
    tensor: Tensor, size: int, nccl: ProcessGroupNCCL, *, out: Tensor
) -> Tensor:
    """Fill a tensor with those of all ranks."""
    collectives._allgather_base_(nccl, out, _whole(tensor))[1].wait()
    return out


def all_gather_into_tensor_coalesced(
    tensors: Tensors, size: int, nccl: ProcessGroupNCCL
) -> Tensors:
    """Return the tensors of all ranks, for several."""
    return [all_gather_into_tensor(tensor, size, nccl) for tensor in tensors]


def reduce_scatter_tensor(
    tensor: Tensor, op: str, size: int, nccl: ProcessGroupNCCL
) -> Tensor:
    """Return this rank's rows of the reduction."""
    out = _new(tensor, len(tensor) // size)
    return reduce_scatter_tensor_out(tensor, op, size, nccl, out=out)


def reduce_scatter_tensor_out(
    tensor: Tensor, op: str, size: int, nccl: ProcessGroupNCCL, *, out: Tensor
) -> Tensor:
    """Fill a tensor with this rank's rows of the reduction."""
    whole = _whole(tensor)
    collectives._reduce_scatter_base_(nccl, out, whole, Reduction(op))[1].wait()
    return out


def reduce_scatter_tensor_coalesced(
    tensors: Tensors, op: str, size: int, nccl: ProcessGroupNCCL
) -> Tensors:
    """Return this rank's rows of several reductions."""
    return [reduce_scatter_tensor(tensor, op, size, nccl) for tensor in tensors]


def all_to_all_single(
    tensor: Tensor,
    output_sizes: list[int],
    input_sizes: list[int],
    nccl: ProcessGroupNCCL,
) -> Tensor:
    """Return the rows that come from all ranks."""
    out = _new(tensor, sum(output_sizes))
    sizes = output_sizes, input_sizes
    exchanges.alltoall_base_(nccl, out, _whole(tensor), *sizes).wait()
    return out


OPS: dict[str, Callable] = {
    function.__name__: function
    for function in (
        all_reduce,
        all_reduce_,
        all_reduce_coalesced,
        all_reduce_coalesced_,
        broadcast,
        broadcast_,
        all_gather_into_tensor,
        all_gather_into_tensor_out,
        all_gather_into_tensor_coalesced,
        reduce_scatter_tensor,
        reduce_scatter_tensor_out,
        reduce_scatter_tensor_coalesced,
        all_to_all_single,
    )
}
