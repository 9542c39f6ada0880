"""Make thousands of calls of each collective on our backends: none may hang.

    torchrun --nproc-per-node 4 tests/bench/calls.py shm 2000 lesson 2000

``python tests/bench calls`` does so for 2 and for 4 ranks. A call that hangs is the one
whose line is missing when the time is up.
"""

import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

CALLS = 2000
LIMIT_S = 900


def operations(group) -> dict:
    """Return all collectives by name, each on fresh tensors, as its own call."""
    import torch
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    most, last = dist.ReduceOp.MAX, world_size - 1

    def new(times: int = 1, dtype=torch.float32) -> torch.Tensor:
        return torch.ones(times * 64, dtype=dtype)

    def each() -> list[torch.Tensor]:
        return [new() for _ in range(world_size)]

    def at_root() -> list[torch.Tensor] | None:
        return each() if rank == last else None

    def reduce(op=dist.ReduceOp.SUM, dtype=torch.float32, later: bool = False) -> None:
        work = dist.all_reduce(new(dtype=dtype), op, group, async_op=later)
        if later:
            work.wait()

    def coalesced(call) -> None:
        with dist._coalescing_manager(group, async_ops=True) as works:
            call(), call()
        works.wait()

    def around() -> None:
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        ops = [dist.P2POp(dist.isend, new(), right, group)]
        ops.append(dist.P2POp(dist.irecv, new(), left, group))
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    def gather_single() -> None:
        dist.all_gather_single(new(world_size), new(), group)

    def scatter_single(op=dist.ReduceOp.SUM) -> None:
        dist.reduce_scatter_single(new(), new(world_size), op, group)

    return {
        "all_reduce": reduce,
        "all_reduce MAX": lambda: reduce(most),
        "all_reduce async": lambda: reduce(later=True),
        "all_reduce MAX async": lambda: reduce(most, later=True),
        "all_reduce complex": lambda: reduce(dtype=torch.complex64),
        "broadcast": lambda: dist.broadcast(new(), last, group),
        "all_gather": lambda: dist.all_gather(each(), new(), group),
        "all_gather_single": gather_single,
        "gather": lambda: dist.gather(new(), at_root(), last, group),
        "scatter": lambda: dist.scatter(new(), at_root(), last, group),
        "reduce": lambda: dist.reduce(new(), last, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(new(), each(), group=group),
        "reduce_scatter_single": scatter_single,
        "reduce_scatter_single MAX": lambda: scatter_single(most),
        "all_to_all": lambda: dist.all_to_all(each(), each(), group),
        "all_to_all_single": lambda: dist.all_to_all_single(
            new(world_size), new(world_size), group=group
        ),
        "barrier": lambda: dist.barrier(group),
        "coalesced all_reduce MAX": lambda: coalesced(lambda: reduce(most)),
        "coalesced all_gather": lambda: coalesced(gather_single),
        "coalesced reduce_scatter": lambda: coalesced(scatter_single),
        "isend and irecv": around,
        "all_gather_object": lambda: dist.all_gather_object(
            [None] * world_size, rank, group
        ),
    }


def on_rank(words: list[str]) -> None:
    """Make so many calls on each backend; rank 0 prints a line for each operation."""
    import torch.distributed as dist

    # some names are deprecated, which says so each time
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_S))
    for backend, times in zip(words[::2], words[1::2], strict=True):
        call_each(backend, int(times))
    dist.destroy_process_group()


def call_each(backend: str, times: int) -> None:
    """Make calls in a new group of a backend."""
    import torch.distributed as dist

    from allranks import backends
    from scripts import ch7_backend

    if backend == "lesson":  # the class that chapter 7 prints
        create = ch7_backend.SharedMemory
        dist.Backend.register_backend(backend, create, devices=["cpu"])
    elif backend != "gloo":
        backend = backends.register(backend)
    group = dist.new_group(backend=backend)
    calls = operations(group)
    if backend == "lesson":  # which leaves to torch what only DTensor calls
        del calls["coalesced all_gather"], calls["coalesced reduce_scatter"]
    for name, call in calls.items():
        start = time.perf_counter()
        for _ in range(times):
            call()
        took = (time.perf_counter() - start) / times
        if dist.get_rank() == 0:
            print(f"{name}: {1e6 * took:.0f} µs a call", flush=True)
    if dist.get_rank() == 0:
        print(f"{backend}, {times} calls of each: no call hung", flush=True)


def run() -> dict:
    """Make 2,000 calls of each, on two ranks and on four."""
    from allranks import launch

    found = {}
    for backend in "shm", "lesson":
        for world_size in 2, 4:
            run = launch(__file__, world_size, backend, str(CALLS), timeout=LIMIT_S)
            found[f"{backend}_{world_size}"] = len(run.lines[0]) - 1
    return found


def report(results: dict) -> str:
    """Return a line for each backend and number of ranks."""
    return "\n".join(
        f"{name}: {CALLS} calls of each of {num} operations, none hung"
        for name, num in results.items()
    )


if __name__ == "__main__":
    sys.path.insert(1, str(Path(__file__).resolve().parents[2]))
    on_rank(sys.argv[1:])
