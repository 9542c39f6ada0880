"""Two ranks: start two processes, and check whether they can add two tensors."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from datetime import timedelta

from allranks.doctor import wheels
from allranks.doctor.facts import in_a_line
from allranks.doctor.registry import check

WAIT_S = 10  # in which the two ranks have to meet
SIZES = {"4 KiB": 2**12, "256 KiB": 2**18, "16 MiB": 2**24}  # to all_reduce


def one_rank(rank: int, backend: str, path: str) -> dict[str, float]:
    """Run as one of two ranks: all_reduce each size, and return its best time in s.

    Args:
        rank: 0 or 1; rank 0 has a tensor of ones, and rank 1 one of twos.
        backend: gloo, or nccl on GPU number ``rank``.
        path: a file that does not exist yet, through which the two find each other.
    """
    import torch
    import torch.distributed as dist

    for descriptor in 1, 2:  # libraries log here, which is not for the report
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    torch.set_num_threads(1)  # a forked process has no pool of threads
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    limit, where = timedelta(seconds=WAIT_S), f"file://{path}"
    dist.init_process_group(backend, where, limit, world_size=2, rank=rank)
    best = {}
    for size, num_bytes in SIZES.items():
        times = []
        for _ in range(5):
            x = torch.full((num_bytes // 4,), rank + 1.0, device=device)
            start = time.perf_counter()
            dist.all_reduce(x)
            x[0].item()  # waits for a GPU
            times.append(time.perf_counter() - start)
            assert bool((x == 3).all()), f"1 + 2 = {x.unique().tolist()}"
        best[size] = min(times)
    return best


def all_reduce(backend: str, method: str, fix: str) -> tuple[str, ...]:
    """Start two ranks, let them add, end them, and return a check's result.

    Args:
        backend: gloo or nccl.
        method: how to start them, fork or spawn.
        fix: what to do if they fail.
    """
    context = multiprocessing.get_context(method)
    try:
        with tempfile.TemporaryDirectory() as folder, context.Pool(2) as pool:
            path = os.path.join(folder, "store")
            jobs = [(rank, backend, path) for rank in (0, 1)]
            best = pool.starmap_async(one_rank, jobs, 1).get(3 * WAIT_S)[0]
    except Exception as error:
        if "usable temporary" in str(error):
            fix = "TMPDIR=/a/folder/that/is/writable python ..."
        return "fail", in_a_line(error), fix
    rates = [f"{SIZES[size] / best[size] / 1e9:.2g}" for size in SIZES]
    return "ok", f"1 + 2 = 3; {', '.join(rates)} GB/s at {', '.join(SIZES)}"


@check(
    "all_reduce", "It takes all of the above: two processes add two tensors.", "torch"
)
def check_all_reduce() -> tuple[str, ...]:
    """Fail if two processes on the CPU cannot form a group, or add wrongly."""
    torch, _ = wheels.load()
    forks = sys.platform == "linux" and not torch.cuda.is_initialized()
    fix = "GLOO_SOCKET_IFNAME=lo python ..., on one machine"
    return all_reduce("gloo", "fork" if forks else "spawn", fix)


@check(
    "nccl", "The same on two GPUs, as a training job does it.", "devices", seconds=90
)
def check_nccl() -> tuple[str, ...]:
    """Fail if two processes on two GPUs cannot add; CUDA needs them to be spawned."""
    torch, _ = wheels.load()
    if torch.cuda.device_count() < 2 or not torch.distributed.is_nccl_available():
        return "ok", "one GPU, or no NCCL: nothing to join"
    fix = "NCCL_DEBUG=INFO python ...; then try NCCL_P2P_DISABLE=1"
    return all_reduce("nccl", "spawn", fix)
