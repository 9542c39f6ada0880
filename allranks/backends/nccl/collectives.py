"""The collectives of c10d on virtual GPUs: what gloo has, and what it lacks.

Each function takes what c10d's op of that name takes, with the group's backend in place
of the group, and returns what the op returns. DDP's reducer, FSDP and ``dist.*`` all
end up here. gloo sees flat pieces of host memory, as NCCL sees flat pieces of a GPU's.
"""

from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from allranks.backends.nccl import rules
from allranks.backends.nccl.group import ProcessGroupNCCL
from allranks.backends.nccl.reductions import divide, named, reduction
from allranks.backends.nccl.work import NcclWork

Tensor, Tensors = torch.Tensor, list[torch.Tensor]


def flat(tensor: Tensor) -> Tensor:
    """Return a tensor's memory as one row of numbers that gloo knows.

    Bools and 8-bit floats travel as bytes. What has gaps, as a message may, travels as
    the memory that begins at its first number.
    """
    inner = tensor._inner.detach()
    row = inner.as_strided((inner.numel(),), (1,), inner.storage_offset())
    as_bytes = row.dtype == torch.bool or row.dtype in rules.FLOAT8
    return row.view(torch.uint8) if as_bytes else row


def as_real(tensors: Tensors) -> Tensors:
    """View complex numbers as pairs, as c10d does for NCCL in sums and broadcasts.

    DDP calls it from C++, so past the functions of Python that do the same.
    """
    return [torch.view_as_real(t) if t.is_complex() else t for t in tensors]


def allreduce_(
    nccl: ProcessGroupNCCL,
    tensors: Tensors,
    op: Any,
    sparse: Tensor | None = None,
    async_op: bool = True,
    timeout: int = -1,
) -> tuple[Tensors, NcclWork]:
    """Replace a tensor by its reduction over all ranks."""
    given, tensors = tensors, as_real(tensors)
    reduce_op, factor = reduction(op, tensors[0].dtype)

    def launch() -> Any:
        row = flat(tensors[0])
        if factor is not None:
            row.mul_(factor)
        options = nccl.configure(c10d.AllreduceOptions(), timeout, reduceOp=reduce_op)
        return divide(nccl.allreduce([row], options), op, row, nccl.size())

    same = f"{named(op)} of {tensors[0].numel()}"
    asked = async_op, timeout
    work = nccl.start("all_reduce", tensors, tensors, launch, *asked, same=same)
    return given, work


def allreduce_coalesced_(
    nccl: ProcessGroupNCCL,
    tensors: Tensors,
    op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> NcclWork:
    """Replace several tensors by their reductions."""
    works = [allreduce_(nccl, [t], op, None, async_op, timeout)[1] for t in tensors]
    return nccl.join(works)


def broadcast_(
    nccl: ProcessGroupNCCL,
    tensors: Tensors,
    root: int,
    root_tensor: int = 0,
    async_op: bool = True,
    timeout: int = -1,
) -> tuple[Tensors, NcclWork]:
    """Replace a tensor by that of the root."""
    given, tensors = tensors, as_real(tensors)

    def launch() -> Any:
        options = nccl.configure(c10d.BroadcastOptions(), timeout, rootRank=root)
        return nccl.broadcast([flat(tensors[0])], options)

    same, asked = f"{tensors[0].numel()} from rank {root}", (async_op, timeout)
    work = nccl.start("broadcast", tensors, tensors, launch, *asked, same=same)
    return given, work


def reduce_(
    nccl: ProcessGroupNCCL,
    tensors: Tensors,
    op: Any,
    root: int,
    root_tensor: int = 0,
    async_op: bool = True,
    timeout: int = -1,
) -> NcclWork:
    """Replace the root's tensor by the reduction over all ranks.

    gloo writes into the other ranks' tensors as well, so they give it copies.
    """

    reduce_op, factor = reduction(op, tensors[0].dtype)

    def launch() -> Any:
        row = flat(tensors[0])
        # NCCL leaves the tensors of all ranks but the root as they are.
        row = row if nccl.rank() == root else row.clone()
        if factor is not None:
            row.mul_(factor)
        options = nccl.configure(c10d.ReduceOptions(), timeout, reduceOp=reduce_op)
        options.rootRank = root
        return divide(nccl.reduce([row], options), op, row, nccl.size())

    same = f"{named(op)} of {tensors[0].numel()} to rank {root}"
    asked = async_op, timeout
    return nccl.start("reduce", tensors, tensors, launch, *asked, same=same)


def _allgather_base_(
    nccl: ProcessGroupNCCL,
    output: Tensor,
    tensor: Tensor,
    async_op: bool = True,
    timeout: int = -1,
) -> tuple[Tensor, NcclWork]:
    """Fill one tensor with those of all ranks."""
    if tensor.dtype != output.dtype:
        raise TypeError("output tensor must have the same type as input tensor")
    if tensor.numel() * nccl.size() != output.numel():
        raise ValueError(
            "output tensor size must be equal to world_size times input tensor size"
        )

    def launch() -> Any:
        options = nccl.configure(c10d.AllgatherOptions(), timeout)
        return nccl._allgather_base(flat(output), flat(tensor), options)

    work = nccl.start("all_gather", [tensor], [output], launch, async_op, timeout)
    return output, work


def allgather_(
    nccl: ProcessGroupNCCL,
    outputs: list[Tensors],
    tensors: Tensors,
    async_op: bool = True,
    timeout: int = -1,
) -> tuple[list[Tensors], NcclWork]:
    """Fill a list with the tensors of all ranks, which may differ in size."""
    [into], [tensor] = outputs, tensors

    def launch() -> Any:
        if len({each.numel() for each in into}) == 1:
            options = nccl.configure(c10d.AllgatherOptions(), timeout)
            return nccl.allgather(
                [[flat(each) for each in into]], [flat(tensor)], options
            )
        flat(into[nccl.rank()]).copy_(flat(tensor))
        works = []
        for root, each in enumerate(into):  # as c10d does it on NCCL
            options = nccl.configure(c10d.BroadcastOptions(), timeout, rootRank=root)
            works.append(nccl.broadcast([flat(each)], options))
        return works

    sizes = [each.numel() for each in into]
    same, asked = f"{sizes}", (async_op, timeout)
    if len(set(sizes)) == 1:
        same = f"{tensor.numel()}"
    elif tensor.numel() != sizes[nccl.rank()]:
        raise ValueError(
            f"all_gather of {tensor.numel()} numbers, where the list has room for "
            f"{sizes[nccl.rank()]}"
        )
    work = nccl.start("all_gather", tensors, into, launch, *asked, same=same)
    return outputs, work


def allgather_coalesced_(
    nccl: ProcessGroupNCCL,
    outputs: list[Tensors],
    tensors: Tensors,
    async_op: bool = True,
) -> NcclWork:
    """Fill several lists with the tensors of all ranks."""
    pairs = zip(outputs, tensors, strict=True)
    return nccl.join([allgather_(nccl, [o], [t], async_op)[1] for o, t in pairs])


def allgather_into_tensor_coalesced_(
    nccl: ProcessGroupNCCL, outputs: Tensors, tensors: Tensors, async_op: bool = True
) -> NcclWork:
    """Fill several tensors with those of all ranks."""
    pairs = zip(outputs, tensors, strict=True)
    return nccl.join([_allgather_base_(nccl, o, t, async_op)[1] for o, t in pairs])


def _reduce_scatter_base_(
    nccl: ProcessGroupNCCL,
    output: Tensor,
    tensor: Tensor,
    op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> tuple[Tensor, NcclWork]:
    """Fill a tensor with this rank's part of the reduction."""
    if tensor.dtype != output.dtype:
        raise TypeError("input tensor must be the same type as the output tensor.")
    if output.numel() * nccl.size() != tensor.numel():
        raise ValueError(
            "input tensor must be the same size as output size times world size"
        )

    reduce_op, factor = reduction(op, tensor.dtype)

    def launch() -> Any:
        whole, row = flat(tensor), flat(output)
        # PREMUL_SUM multiplies before the sum; the caller's input stays as it is.
        whole = whole if factor is None else whole * factor
        options = nccl.configure(c10d.ReduceScatterOptions(), timeout)
        options.reduceOp = reduce_op
        started = nccl._reduce_scatter_base(row, whole, options)
        return divide(started, op, row, nccl.size())

    same, asked = f"{named(op)} of {tensor.numel()}", (async_op, timeout)
    work = nccl.start("reduce_scatter", [tensor], [output], launch, *asked, same=same)
    return output, work


def reduce_scatter_(
    nccl: ProcessGroupNCCL,
    outputs: Tensors,
    inputs: list[Tensors],
    op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> tuple[Tensors, NcclWork]:
    """Fill a tensor with this rank's of a list of reductions, which differ in size."""
    [output], [tensors] = outputs, inputs

    reduce_op, factor = reduction(op, output.dtype)

    def launch() -> Any:
        rows, row = [flat(tensor) for tensor in tensors], flat(output)
        rows = rows if factor is None else [each * factor for each in rows]
        options = nccl.configure(c10d.ReduceScatterOptions(), timeout)
        options.reduceOp = reduce_op
        started = nccl.reduce_scatter([row], [rows], options)
        return divide(started, op, row, nccl.size())

    same = f"{named(op)} of {[each.numel() for each in tensors]}"
    asked = async_op, timeout
    work = nccl.start("reduce_scatter", tensors, outputs, launch, *asked, same=same)
    return outputs, work


def reduce_scatter_tensor_coalesced_(
    nccl: ProcessGroupNCCL,
    outputs: Tensors,
    tensors: Tensors,
    op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> NcclWork:
    """Fill several tensors with this rank's parts of reductions."""
    return nccl.join(
        [
            _reduce_scatter_base_(nccl, output, tensor, op, async_op, timeout)[1]
            for output, tensor in zip(outputs, tensors, strict=True)
        ]
    )
