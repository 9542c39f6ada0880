"""The backend "shm": collectives of one machine's ranks through shared memory.

An all_reduce through sockets copies each number into the kernel and out of it again, at
each hop of a ring. Ranks of one machine can do with less: each puts its numbers where
all can read them, adds up a share of them, and takes the others' shares. NCCL does the
same inside a machine where GPUs cannot reach each other's memory.

It carries out what DDP and FSDP2 call. Gloo does the rest, once the ranks have met and
agree on what to do. A group takes 4 MiB of memory for each of its ranks.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from allranks.backends.over_gloo import OverGloo
from allranks.backends.segment import CHUNK, Segment
from allranks.backends.work import InOrder, done


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
        self._later, self._turn = InOrder("shm"), threading.Lock()
        self._segment = Segment(
            dist.PrefixStore("shm", store), rank, world_size, timeout
        )

    def _run(self, opts: Any, result: list, collective: Callable[[], None]) -> Work:
        """Carry out a collective: now, or in a thread if the caller wants to go on.

        In backward it is now: with as many ranks as cores nothing would be left to
        overlap it with, and a hook of DDP's that calls another collective when this
        one is done calls it in the same order on all ranks.
        """

        def once() -> None:
            with self._turn:
                collective()

        backward = torch._C._current_graph_task_id() != -1
        later = getattr(opts, "asyncOp", False) and not backward
        if (later or self._later.pending) and not self._later.in_callback():
            work = self._later.put(once, result)
            if not later:
                work.wait()
            return work
        once()
        return done(result)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Replace a tensor by its sum, mean, … over all ranks."""
        [tensor] = tensors
        return self._run(opts, tensors, lambda: self._all_reduce(tensor, opts))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Replace several tensors by their sums, means, …"""

        def each() -> None:
            for tensor in tensors:
                self._all_reduce(tensor, opts)

        return self._run(opts, tensors, each)

    def _all_reduce(self, tensor: torch.Tensor, opts: Any) -> None:
        meet = partial(self._segment.meet, "all_reduce", *about(tensor, opts))
        if not adds(tensor, opts.reduceOp):
            meet()
            plain = dist.AllreduceOptions()  # those of a coalesced call are others
            plain.reduceOp = opts.reduceOp
            self._gloo.allreduce([tensor], plain).wait()
            return
        flat = flattened(tensor)
        for x in flat.split(CHUNK // flat.element_size()):
            self._add_up(x, meet)
        if opts.reduceOp == dist.ReduceOp.AVG:
            flat.div_(self.size())
        put(flat, tensor)

    def _add_up(self, x: torch.Tensor, meet: Callable[[], None]) -> None:
        """Replace x (n,) by the sum of all ranks' x; n is a chunk at most."""
        rank, world_size, n = self.rank(), self.size(), len(x)
        slots = self._gather(x, meet)
        if world_size == 2:  # each adds up all of it: a + b has the bits of b + a
            x.add_(slots[1 - rank])
        elif world_size > 2:  # each adds up its share, for all the same, rank by rank
            share = slice(n * rank // world_size, n * (rank + 1) // world_size)
            for slot in slots[1:]:
                slots[0, share].add_(slot[share])
            meet()
            x.copy_(slots[0])

    def _gather(self, x: torch.Tensor, meet: Callable[[], None]) -> torch.Tensor:
        """Show x (n,) to all ranks; return theirs (W, n), until the next meeting."""
        slots = self._segment.next_slots(x.dtype)[:, : len(x)]
        slots[self.rank()].copy_(x)
        meet()
        return slots

    def _allgather_base(
        self, out: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> Work:
        """Fill one tensor with the tensors of all ranks."""
        return self._run(opts, [out], lambda: self._all_gather(out, tensor))

    def allgather_into_tensor_coalesced(
        self, outs: list[torch.Tensor], tensors: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Fill several tensors with those of all ranks."""

        def each() -> None:
            for out, tensor in zip(outs, tensors, strict=True):
                self._all_gather(out, tensor)

        return self._run(opts, outs, each)

    def _all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> None:
        check("all_gather", out, tensor, self.size(), 1)
        meet = partial(self._segment.meet, "all_gather", *about(tensor))
        flat, into = flattened(tensor), flattened(out)
        rows, size = into.view(self.size(), -1), CHUNK // flat.element_size()
        for x, row in zip(flat.split(size), rows.split(size, dim=1), strict=True):
            row.copy_(self._gather(x, meet))
        put(into, out)

    def allgather(
        self, outs: list[list[torch.Tensor]], tensors: list[torch.Tensor], opts: Any
    ) -> Work:
        """Fill W tensors with the tensors of all ranks."""
        [out], [tensor] = outs, tensors

        def gather() -> None:
            if any(t.shape != tensor.shape or t.dtype != tensor.dtype for t in out):
                self._segment.meet("all_gather")  # gloo says what it thinks of them
                self._gloo.allgather(outs, tensors, opts).wait()
                return
            found = torch.empty((len(out), tensor.numel()), dtype=tensor.dtype)
            self._all_gather(found, tensor)
            for row, into in zip(found, out, strict=True):
                put(row, into)

        return self._run(opts, out, gather)

    def _reduce_scatter_base(
        self, out: torch.Tensor, tensor: torch.Tensor, opts: Any
    ) -> Work:
        """Fill a tensor with this rank's part of all ranks' sum, mean, …"""
        return self._run(opts, [out], lambda: self._reduce_scatter(out, tensor, opts))

    def reduce_scatter_tensor_coalesced(
        self, outs: list[torch.Tensor], tensors: list[torch.Tensor], opts: Any
    ) -> Work:
        """Fill several tensors with this rank's parts of sums, means, …"""

        def each() -> None:
            for out, tensor in zip(outs, tensors, strict=True):
                self._reduce_scatter(out, tensor, opts)

        return self._run(opts, outs, each)

    def _reduce_scatter(
        self, out: torch.Tensor, tensor: torch.Tensor, opts: Any
    ) -> None:
        check("reduce_scatter", out, tensor, 1, self.size())
        meet = partial(self._segment.meet, "reduce_scatter", *about(tensor, opts))
        if not adds(tensor, opts.reduceOp):
            meet()
            self._gloo._reduce_scatter_base(out, tensor, opts).wait()
            return
        parts = tensor.detach().reshape(self.size(), -1)
        into = flattened(out)
        size = CHUNK // tensor.element_size() // self.size()
        pairs = zip(parts.split(size, dim=1), into.split(size), strict=True)
        for part, x in pairs:
            theirs = self._gather(part.reshape(-1), meet)
            theirs = theirs.view(self.size(), *part.shape)[:, self.rank()]
            x.copy_(theirs[0])
            for other in theirs[1:]:
                x.add_(other)
        if opts.reduceOp == dist.ReduceOp.AVG:
            into.div_(self.size())
        put(into, out)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Replace a tensor by that of the root."""
        [tensor], root = tensors, opts.rootRank
        if not 0 <= root < self.size():
            raise ValueError(
                f"broadcast from rank {root}: ranks 0 to {self.size() - 1}"
            )
        meet = partial(self._segment.meet, "broadcast", *about(tensor, opts))

        def copy() -> None:
            flat = flattened(tensor)
            for x in flat.split(CHUNK // flat.element_size()):
                slots = self._segment.next_slots(x.dtype)[:, : len(x)]
                if self.rank() == root:
                    slots[root].copy_(x)
                meet()
                if self.rank() != root:
                    x.copy_(slots[root])
            put(flat, tensor)

        return self._run(opts, tensors, copy)

    def barrier(self, opts: Any = None) -> Work:
        """Wait for all ranks."""
        return self._run(opts, [], lambda: self._segment.meet("barrier"))


def check(
    kind: str, out: torch.Tensor, tensor: torch.Tensor, times: int, parts: int
) -> None:
    """Refuse a result of another dtype or size than the call gives."""
    if out.dtype != tensor.dtype or parts * out.numel() != times * tensor.numel():
        raise ValueError(
            f"{kind}: {tensor.numel()} numbers of {tensor.dtype} on each of "
            f"{max(times, parts)} ranks do not give {out.numel()} of {out.dtype}"
        )


def flattened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's numbers (n,): its own memory, unless that has gaps."""
    return tensor.detach().reshape(-1).contiguous()


def put(flat: torch.Tensor, tensor: torch.Tensor) -> None:
    """Write numbers (n,) into a tensor, unless they are its own memory."""
    if flat.data_ptr() == tensor.data_ptr():
        return
    tensor, values = tensor.detach(), flat.view(tensor.shape)
    for dim, step in enumerate(tensor.stride()):
        if step == 0:  # expanded: one place in memory for all indices
            tensor, values = tensor.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    tensor.copy_(values)


def about(tensor: torch.Tensor, opts: Any = None) -> tuple[int, str, str, int]:
    """Return in what ranks must agree: bytes, dtype, operation, root."""
    num_bytes, dtype = 0, "sparse"  # each rank may have other numbers
    if not tensor.is_sparse:
        num_bytes, dtype = tensor.nbytes, str(tensor.dtype).removeprefix("torch.")
    op = opts.reduceOp.op.name if hasattr(opts, "reduceOp") else ""
    return num_bytes, dtype, op, getattr(opts, "rootRank", 0)


# What gloo does: how it is called, and in what the ranks must agree.
LEFT = {
    "reduce": ("reduce", lambda tensors, opts: about(tensors[0], opts)),
    "gather": ("gather", lambda outs, tensors, opts: about(tensors[0], opts)),
    "scatter": ("scatter", lambda outs, lists, opts: about(outs[0], opts)),
    "reduce_scatter": (
        "reduce_scatter of a list",
        lambda outs, lists, opts: about(outs[0], opts),
    ),
    "alltoall": ("all_to_all", lambda outs, tensors, *_: (0, *about(outs[0])[1:])),
    "alltoall_base": ("all_to_all", lambda out, *_: (0, *about(out)[1:])),
    "allgather_coalesced": ("all_gather_coalesced", lambda *_: ()),
}


def left_to_gloo(method: str) -> Callable:
    """Return a method of ``SharedMemory`` that has gloo do it, when all have come."""
    kind, agreed = LEFT[method]

    def run(self: SharedMemory, *args: Any, **kwargs: Any) -> Work:
        args += tuple(kwargs.values())  # the options, if anything

        def collective() -> None:
            self._segment.meet(kind, *agreed(*args))
            getattr(self._gloo, method)(*args).wait()

        result = args[0] if isinstance(args[0], list) else [args[0]]
        opts = next((arg for arg in args if hasattr(arg, "asyncOp")), None)
        return self._run(opts, result, collective)

    return run


for _method in LEFT:
    setattr(SharedMemory, _method, left_to_gloo(_method))
SharedMemory.all_to_all_single = SharedMemory.alltoall_base


def adds(tensor: torch.Tensor, op: dist.ReduceOp) -> bool:
    """Tell whether this backend does such a reduction, or leaves it to gloo."""
    if tensor.is_sparse or tensor.is_complex() or tensor.dtype == torch.bool:
        return False
    return op == dist.ReduceOp.SUM or op == dist.ReduceOp.AVG
