"""What moves numbers between single ranks: gather, scatter, all_to_all, messages.

As in ``collectives``, each function takes what c10d's op of its name takes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from allranks.backends.nccl.collectives import Tensor, Tensors, flat
from allranks.backends.nccl.group import ProcessGroupNCCL
from allranks.backends.nccl.work import NcclWork


def gather_(
    nccl: ProcessGroupNCCL,
    outputs: list[Tensors],
    tensors: Tensors,
    root: int,
    async_op: bool = True,
    timeout: int = -1,
) -> NcclWork:
    """Fill the root's list with the tensors of all ranks."""
    into = outputs[0] if nccl.rank() == root else []

    def launch() -> Any:
        options = nccl.configure(c10d.GatherOptions(), timeout, rootRank=root)
        rows = [[flat(each) for each in into]] if into else []
        return nccl.gather(rows, [flat(tensors[0])], options)

    same, asked = f"{tensors[0].numel()} to rank {root}", (async_op, timeout)
    return nccl.start("gather", tensors, into, launch, *asked, same=same)


def gather_into_tensor_(
    nccl: ProcessGroupNCCL,
    output: torch.Tensor,
    tensor: torch.Tensor,
    root: int,
    async_op: bool = True,
    timeout: int = -1,
) -> tuple[torch.Tensor, NcclWork]:
    """Fill the root's tensor with those of all ranks, from torch 2.15 on."""
    parts = output.view(nccl.size(), -1) if nccl.rank() == root else ()
    return output, gather_(nccl, [[*parts]], [tensor], root, async_op, timeout)


def scatter_(
    nccl: ProcessGroupNCCL,
    outputs: Tensors,
    inputs: list[Tensors],
    root: int,
    async_op: bool = True,
    timeout: int = -1,
) -> tuple[Tensors, NcclWork]:
    """Fill a tensor with this rank's of the root's list."""
    given = inputs[0] if nccl.rank() == root else []

    def launch() -> Any:
        options = nccl.configure(c10d.ScatterOptions(), timeout, rootRank=root)
        rows = [[flat(each) for each in given]] if given else []
        return nccl.scatter([flat(outputs[0])], rows, options)

    same, asked = f"{outputs[0].numel()} from rank {root}", (async_op, timeout)
    work = nccl.start("scatter", given, outputs, launch, *asked, same=same)
    return outputs, work


def alltoall_base_(
    nccl: ProcessGroupNCCL,
    output: Tensor,
    tensor: Tensor,
    output_sizes: Sequence[int],
    input_sizes: Sequence[int],
    async_op: bool = True,
    timeout: int = -1,
) -> NcclWork:
    """Send each rank its rows of a tensor; fill another with the rows that come."""

    def launch() -> Any:
        options = nccl.configure(c10d.AllToAllOptions(), timeout)
        sizes = _numbers(output, output_sizes), _numbers(tensor, input_sizes)
        return nccl.alltoall_base(flat(output), flat(tensor), *sizes, options)

    same, asked = None if not output_sizes else "", (async_op, timeout)
    return nccl.start("all_to_all", [tensor], [output], launch, *asked, same=same)


def _numbers(tensor: Tensor, rows: Sequence[int]) -> list[int]:
    """Return how many numbers so many rows have.

    Raises:
        RuntimeError: if the rows are not all that the tensor has.
    """
    if not rows:
        return []
    if sum(rows) != len(tensor):
        raise RuntimeError("Split sizes doesn't match total dim 0 size")
    each = tensor[0].numel() if len(tensor) else 0
    return [each * row for row in rows]


def alltoall_(
    nccl: ProcessGroupNCCL,
    outputs: Tensors,
    tensors: Tensors,
    async_op: bool = True,
    timeout: int = -1,
) -> tuple[Tensors, NcclWork]:
    """Send a tensor to each rank; fill a list with those that come."""

    def launch() -> Any:
        sent = torch.cat([flat(tensor) for tensor in tensors])
        rows = [flat(output) for output in outputs]
        came = torch.empty(sum(len(row) for row in rows), dtype=sent.dtype)
        sizes = [len(row) for row in rows], [tensor.numel() for tensor in tensors]
        options = nccl.configure(c10d.AllToAllOptions(), timeout)
        nccl.alltoall_base(came, sent, *sizes, options).wait()
        for row, part in zip(rows, came.split(sizes[0]), strict=True):
            row.copy_(part)

    asked = async_op, timeout
    work = nccl.start("all_to_all", tensors, outputs, launch, *asked, same="")
    return outputs, work


def barrier(
    nccl: ProcessGroupNCCL,
    tensor: Tensor,
    device_ids: Sequence[int] = (),
    async_op: bool = True,
    timeout: int = -1,
) -> NcclWork:
    """Wait for all ranks; on NCCL it is an all_reduce of one number.

    c10d hands over a number on the current GPU, which NCCL does not use: it takes the
    GPU that was asked for, else the group's own, else the one of the rank's number.
    """
    index = device_ids[0] if device_ids else nccl.own_gpu(tensor.device)
    if index != tensor.device.index:
        tensor = tensor.new_empty(1, device=torch.device(tensor.device.type, index))

    def launch() -> Any:
        options = nccl.configure(c10d.AllreduceOptions(), timeout)
        return nccl.allreduce([torch.zeros(1)], options)

    return nccl.start("barrier", [tensor], [tensor], launch, async_op, timeout)


def send(nccl: ProcessGroupNCCL, tensors: Tensors, target: int, tag: int) -> NcclWork:
    """Send a tensor to one rank; NCCL has no tags, so messages arrive in order."""
    return nccl.start(
        "send", tensors, [], lambda: nccl.post(flat(tensors[0]), target), peer=target
    )


def recv_(nccl: ProcessGroupNCCL, tensors: Tensors, source: int, tag: int) -> NcclWork:
    """Receive a tensor from one rank."""
    return nccl.start(
        "recv", [], tensors, lambda: nccl.fetch(flat(tensors[0]), source), peer=source
    )


def recv_any_source_(nccl: ProcessGroupNCCL, tensors: Tensors, tag: int) -> NcclWork:
    """Refuse, as NCCL has no such receive."""
    raise RuntimeError("ProcessGroupNCCL does not support recvAnysource")


def monitored_barrier_(nccl: ProcessGroupNCCL, *args: Any) -> None:
    """Refuse, as c10d has it for gloo only."""
    raise RuntimeError("ProcessGroupNCCL does not support monitoredBarrier")
