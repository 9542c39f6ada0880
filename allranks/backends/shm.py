"""The backend "shm": collectives of one machine's ranks through shared memory.

An all_reduce through sockets copies each number into the kernel and out of it again, at
each hop of a ring. Ranks of one machine can do with less: each puts its numbers where
all can read them, adds up a share of them, and takes the others' shares. NCCL does the
same inside a machine where GPUs cannot reach each other's memory.

It carries out what DDP and FSDP2 call; all else goes to gloo. A call returns when its
work is done: with as many ranks as cores, nothing would be left to overlap it with.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from allranks.backends.over_gloo import OverGloo, done
from allranks.backends.segment import CHUNK, Segment


class SharedMemory(OverGloo):
    """A process group whose ranks share memory.

    Args:
        store: where the group's ranks find one another.
        rank, world_size: of this process in the group.
        timeout: for every collective.
    """

    name = "shm"

    def __init__(
        self, store: dist.Store, rank: int, world_size: int, timeout: timedelta
    ) -> None:
        super().__init__(store, rank, world_size, timeout)
        self._segment = Segment(
            dist.PrefixStore("shm", store), rank, world_size, timeout
        )

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Replace a tensor by its sum or mean over all ranks."""
        [tensor] = tensors
        if not adds(tensor, opts.reduceOp):
            return super().allreduce(tensors, opts)
        flat = tensor.detach().reshape(-1)  # a copy if the tensor has gaps
        for x in flat.split(CHUNK // flat.element_size()):
            self._add_up(x)
        if opts.reduceOp == dist.ReduceOp.AVG:
            flat.div_(self.size())
        if not tensor.is_contiguous():
            tensor.detach().copy_(flat.view_as(tensor))
        return done(tensors)

    def _add_up(self, x: torch.Tensor) -> None:
        """Replace x (n,) by the sum of all ranks' x; n is a chunk at most."""
        rank, world_size, n = self.rank(), self.size(), len(x)
        slots = self._gather(x, "all_reduce")
        if world_size == 2:  # each adds up all of it: a + b has the bits of b + a
            x.add_(slots[1 - rank])
        elif world_size > 2:  # each adds up its share, for all the same, rank by rank
            share = slice(n * rank // world_size, n * (rank + 1) // world_size)
            for slot in slots[1:]:
                slots[0, share].add_(slot[share])
            self._segment.meet("all_reduce", x.nbytes)
            x.copy_(slots[0])

    def _allgather_base(
        self, out: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> Work:
        """Fill one tensor with the tensors of all ranks."""
        rows = out.detach().view(self.size(), -1)
        flat = tensor.detach().reshape(-1)
        size = CHUNK // flat.element_size()
        for x, row in zip(flat.split(size), rows.split(size, dim=1), strict=True):
            row.copy_(self._gather(x, "all_gather"))
        return done([out])

    def allgather(
        self, outs: list[list[torch.Tensor]], tensors: list[torch.Tensor], opts: Any
    ) -> Work:
        """Fill W tensors with the tensors of all ranks."""
        [out], [tensor] = outs, tensors
        if any(t.shape != tensor.shape or t.dtype != tensor.dtype for t in out):
            return super().allgather(outs, tensors, opts)
        found = torch.empty((len(out), tensor.numel()), dtype=tensor.dtype)
        self._allgather_base(found, tensor)
        for row, into in zip(found, out, strict=True):
            into.detach().copy_(row.view(tensor.shape))
        return done(out)

    def _gather(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        """Show x (n,) to all ranks; return theirs (W, n), until the next meeting."""
        slots = self._segment.next_slots(x.dtype)[:, : len(x)]
        slots[self.rank()].copy_(x)
        self._segment.meet(kind, x.nbytes)
        return slots

    def _reduce_scatter_base(
        self, out: torch.Tensor, tensor: torch.Tensor, opts: Any
    ) -> Work:
        """Fill a tensor with this rank's part of all ranks' sum or mean."""
        if not adds(tensor, opts.reduceOp):
            return super()._reduce_scatter_base(out, tensor, opts)
        parts = tensor.detach().reshape(self.size(), -1)
        into = out.detach().view(-1)
        size = CHUNK // tensor.element_size() // self.size()
        pairs = zip(parts.split(size, dim=1), into.split(size), strict=True)
        for part, x in pairs:
            theirs = self._gather(part.reshape(-1), "reduce_scatter")
            theirs = theirs.view(self.size(), *part.shape)[:, self.rank()]
            x.copy_(theirs[0])
            for other in theirs[1:]:
                x.add_(other)
        if opts.reduceOp == dist.ReduceOp.AVG:
            into.div_(self.size())
        return done([out])

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Replace a tensor by that of the root."""
        [tensor], root = tensors, opts.rootRank
        flat = tensor.detach().reshape(-1)
        for x in flat.split(CHUNK // flat.element_size()):
            slots = self._segment.next_slots(x.dtype)[:, : len(x)]
            if self.rank() == root:
                slots[root].copy_(x)
            self._segment.meet("broadcast", x.nbytes)
            if self.rank() != root:
                x.copy_(slots[root])
        if not tensor.is_contiguous():
            tensor.detach().copy_(flat.view_as(tensor))
        return done(tensors)

    def barrier(self, opts: Any = None) -> Work:
        """Wait for all ranks."""
        self._segment.meet("barrier")
        return done([])


def adds(tensor: torch.Tensor, op: dist.ReduceOp) -> bool:
    """Tell whether this backend does such a reduction, or leaves it to gloo."""
    if tensor.is_sparse or tensor.is_complex() or tensor.dtype == torch.bool:
        return False
    return op == dist.ReduceOp.SUM or op == dist.ReduceOp.AVG
