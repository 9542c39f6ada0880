"""Chapter 7 - A backend of your own: all_reduce in shared memory.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch7_backend.py
"""

import argparse
import atexit
import gc
import mmap
import os
import re
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import NoReturn


def watch(parent: int) -> None:
    """End this rank when its launcher has died, even of SIGKILL.

    It asks once a second: prctl watches only one thread of the launcher's.
    """

    def look():
        while os.getppid() == parent:
            time.sleep(1)
        with suppress(OSError):
            os.write(2, b"ended: the launcher of this rank is gone\n")
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":  # before the slow imports
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # no traceback
    if "TORCHELASTIC_USE_AGENT_STORE" in os.environ:  # started by torchrun
        watch(os.getppid())

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(args: argparse.Namespace) -> tuple[int, int, torch.device]:
    """Join the group torchrun describes: (rank, world_size, device)."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit(__doc__)  # started with python, not torchrun
    timeout = time_limit()
    sys.excepthook = brief
    device = torch.device("cpu")
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu is not None and gpu.type != "mps":  # a Mac's GPU has no collectives
        num_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
        if num_ranks > (num_gpus := torch.accelerator.device_count()):
            why = f"{num_ranks} ranks on this machine, but {num_gpus} GPUs"
            refuse(f"{why}: lower --nproc-per-node to {num_gpus}")
        device = torch.device(gpu.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        timeout=timeout,
        device_id=None if device.type == "cpu" else device,
    )
    agree(args)
    return dist.get_rank(), dist.get_world_size(), device


def say(text: str) -> None:
    """Print one line in one write, so that two ranks' lines never merge."""
    put(f"[rank {dist.get_rank()}/{dist.get_world_size()}] {text}")


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
GLOOS = "allgather allreduce_coalesced alltoall alltoall_base barrier broadcast "
GLOOS += "gather recv recv_anysource reduce reduce_scatter scatter send "
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


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    parser.add_argument("--repeats", type=int, default=9, help="of each size")
    return in_range(parser.parse_args(argv))


def main() -> None:
    """Compare the new backend with gloo, by turns: times and gradients."""
    rank, *_ = setup(args := parse_args())
    tell = str if rank else say  # only rank 0 speaks
    dist.Backend.register_backend("lesson", SharedMemory, devices=["cpu"])
    groups = [dist.new_group(backend=name) for name in ("gloo", "lesson")]
    for mb in 1, 4, 16, 64:
        times = [[spent(g, mb) for g in groups] for _ in range(args.repeats)]
        gloo, ours = map(min, zip(*times, strict=True))
        tell(f"{mb} MB: gloo {gloo:.1f} ms, shared memory {ours:.1f} ms")
    gap = torch.sub(*map(gradient, groups)).abs().max()
    tell(f"DDP on both: its gradients differ by {gap:.1e} at most")
    gc.collect()  # torch 2.13 may abort at exit if DDP's last work lives
    dist.destroy_process_group()


# The rest stands in every script: a job that cannot go on ends in a sentence.
def refuse(why: str) -> NoReturn:
    """End all ranks with one sentence: all found the same fault."""
    started = "TORCHELASTIC_USE_AGENT_STORE" in os.environ  # by a launcher
    if started and os.environ.get("LOCAL_RANK") != "0":
        time.sleep(9)  # rank 0 says it; then the launcher ends this rank
    if started and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # or exit may abort
    raise SystemExit(why)


def put(line: str) -> None:
    """Print a line in one write; end with a sentence if stdout fails."""
    try:
        print(f"{line}\n", end="", flush=True)
    except OSError as error:  # a full disk, or `| head`, which left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # no second try at exit
        why = f"cannot print to stdout: {error.strerror}"
        refuse(f"{why}: ended")


def in_range(args: argparse.Namespace) -> argparse.Namespace:
    """Refuse impossible numbers before anything is started."""
    most = {"seed": 2**32 - 1, "samples": 1440, "nproc_per_node": 64}
    most |= {"workers": 64, "numbers": 64, "width": 8192, "columns": 16384}
    for name, value in vars(args).items():
        flag, low = "--" + name.replace("_", "-"), int(name != "seed")
        high = most.get(name, 65536)
        if type(value) is int and not low <= value <= high:
            refuse(f"{flag} {value}: must be {low} to {high}")
        if type(value) is float and not 1e-30 <= value <= 1e30:
            refuse(f"{flag} {value}: must be 1e-30 to 1e+30")
    return args


def brief(kind, error, trace) -> None:
    """Print a traceback, or one line if another process was first to die."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or this may be interrupted
    why, both = "", (error, error.__context__)  # what it came of may tell it
    pipe = any(isinstance(e, ConnectionError | EOFError) for e in both)
    if pipe or any("DataLoader worker (pid" in str(e) for e in both):
        why = "a DataLoader worker was killed, often for want of memory"
    elif re.search("closed by peer|reset by peer|Broken pipe", str(error)):
        why = "its connection to another rank is closed; look there"
    if why:
        sys.stderr.write(f"[rank {os.environ['RANK']}] ended: {why}\n")
    else:
        sys.__excepthook__(kind, error, trace)


def time_limit() -> timedelta:
    """Check what a launcher sets; return what a collective may take."""
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
    for name in *names, "MASTER_PORT", "MASTER_ADDR":
        value = os.environ.get(name, "")
        if not (value if name == "MASTER_ADDR" else value.isdecimal()):
            why = f"{name} is {value!r}, but LOCAL_RANK is set"
            refuse(f"{why}: unset it and start with torchrun, or set all")
    for this, all_ in names[:2], names[2:]:
        if (rank := int(os.environ[this])) >= (num := int(os.environ[all_])):
            refuse(f"{this} {rank}: {all_} is {num}, so it ends at {num - 1}")
    text = os.environ.get("GROUP_TIMEOUT_S", "300")
    try:
        if not 0 < float(text) < 1e7:
            raise ValueError
    except ValueError:
        refuse(f"GROUP_TIMEOUT_S {text!r}: must be seconds, above 0")
    return timedelta(seconds=float(text))


def agree(args: argparse.Namespace) -> None:
    """End all ranks if their flags differ: so would what they train."""
    flags = [{}] * dist.get_world_size()
    dist.all_gather_object(flags, vars(args))
    for name in flags[0]:
        ranks = {}
        for rank, theirs in enumerate(flags):
            ranks.setdefault(repr(theirs.get(name)), []).append(rank)
        if len(ranks) > 1:
            found = [f"{value} on {who}" for value, who in ranks.items()]
            why = f"--{name.replace('_', '-')} differs between ranks"
            refuse(f"{why}: {', '.join(found)}: give all nodes the same")


if __name__ == "__main__":
    main()
