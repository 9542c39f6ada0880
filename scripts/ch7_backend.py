"""Chapter 7 - A backend of your own: all_reduce in shared memory.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch7_backend.py
"""

import job  # first, since importing torch takes seconds

import atexit
import mmap
import os
import tempfile
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.nn.parallel import DistributedDataParallel as DDP


class SharedMemory(dist.ProcessGroup):
    """A process group that adds up in shared memory; gloo does the rest."""

    def __init__(self, store, rank: int, world_size: int, timeout: timedelta):
        super().__init__(rank, world_size)
        self.gloo = dist.ProcessGroupGloo(store, rank, world_size, timeout)
        self._register_backend(torch.device("cpu"), self.GLOO, self.gloo)
        self._set_default_backend(self.GLOO)
        self.timeout, self.count, self.turn = timeout.total_seconds(), 0, 0
        head = 64 * world_size  # a counter in each rank's line of the cache
        shared = open_memory(store, rank, head + 2 * world_size * SLOT)
        self.counts = memoryview(shared)[:head].cast("q")[::8]
        slots = torch.frombuffer(shared, dtype=torch.uint8, offset=head)
        self.slots = slots.view(2, world_size, SLOT)

    def meet(self) -> None:
        """Wait until all ranks are here: a barrier, of a counter for each."""
        self.count, start = self.count + 1, time.monotonic()
        os.sched_yield()  # a memory barrier: others see my slot before this
        self.counts[self.rank()] = self.count
        for rank in range(self.size()):
            while self.counts[rank] < self.count:
                if (waited := time.monotonic() - start) > self.timeout:
                    raise RuntimeError(f"rank {rank} has not come in time")
                time.sleep(1e-4 if waited > 1e-3 else 0)  # 0: let others run
        os.sched_yield()  # and I read no slot before its counter

    def allreduce(self, tensors, opts):
        """Replace a tensor by its sum over all ranks."""
        if opts.reduceOp != dist.ReduceOp.SUM:
            return self.gloo.allreduce(tensors, opts)  # not super()'s
        [x], rank, size = tensors, self.rank(), self.size()
        flat = x.detach().reshape(-1)
        for part in flat.split(SLOT // x.itemsize):
            self.turn ^= 1  # a slower rank may still read from the other slots
            n, slots = len(part), self.slots[self.turn].view(x.dtype)
            slots[rank, :n] = part
            self.meet()  # now all slots are full
            mine = slice(n * rank // size, n * (rank + 1) // size)
            for other in slots[1:]:  # in the same order on each rank
                slots[0, mine].add_(other[mine])
            self.meet()  # now slot 0 holds the sum
            part.copy_(slots[0, :n])
        x.detach().copy_(flat.view_as(x))  # flat is a copy if x has gaps
        future = torch.futures.Future()
        future.set_result(tensors)
        return _create_work_from_future(future)  # work that is done


SLOT = 2 << 20  # bytes that a rank puts down at once: they stay in its cache
GLOOS = "allgather allreduce_coalesced alltoall alltoall_base barrier gather "
GLOOS += "broadcast recv recv_anysource reduce reduce_scatter scatter send "
GLOOS += "all_gather_single all_to_all_single reduce_scatter_single"  # 2.15
for name in filter(partial(hasattr, dist.ProcessGroupGloo), GLOOS.split()):

    def _by_gloo(self, *args, name=name, **opts):
        return getattr(self.gloo, name)(*args, **opts)

    setattr(SharedMemory, name, _by_gloo)


def open_memory(store, rank: int, size: int) -> mmap.mmap:
    """Open memory for all ranks, which is gone when the last one has ended."""
    if rank == 0:
        if hasattr(os, "memfd_create"):  # Linux: a file that has no name
            fd = os.memfd_create("ch7_backend")
            path = f"/proc/{os.getpid()}/fd/{fd}"
        else:
            fd, path = tempfile.mkstemp()
            atexit.register(os.remove, path)
        os.ftruncate(fd, size)
        store.set("memory", path)
    return mmap.mmap(os.open(store.get("memory"), os.O_RDWR), size)


def gradient(group) -> torch.Tensor:
    """Let DDP average a gradient, unchanged, on a group."""
    torch.manual_seed(dist.get_rank())
    net = DDP(torch.nn.Linear(512, 512), process_group=group)
    net(torch.randn(32, 512)).square().mean().backward()
    return net.module.weight.grad


def spent(group, mb: int) -> float:
    """Return the milliseconds of an all_reduce, until all ranks are done."""
    x = torch.ones(mb * 250_000)
    _, start = dist.barrier(group), time.perf_counter()
    dist.all_reduce(x, group=group)
    dist.barrier(group)
    return 1e3 * (time.perf_counter() - start)


def compare(args, rank: int) -> None:
    """Compare the new backend with gloo, by turns: times and gradients."""
    tell = str if rank else job.say  # only rank 0 speaks
    dist.Backend.register_backend("lesson", SharedMemory, devices=["cpu"])
    groups = [dist.new_group(backend=name) for name in ("gloo", "lesson")]
    for mb in 1, 4, 16, 64:
        times = [[spent(g, mb) for g in groups] for _ in range(args.repeats)]
        gloo, ours = map(min, zip(*times, strict=True))
        tell(f"{mb} MB: gloo {gloo:.1f} ms, shared memory {ours:.1f} ms")
    gap = torch.sub(*map(gradient, groups)).abs().max()
    tell(f"DDP on both: its gradients differ by {gap:.1e} at most")


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    parser = job.Flags(__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="of each size")
    return parser.parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as (rank, *_):
        compare(args, rank)
