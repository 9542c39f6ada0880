"""How long an all_reduce takes on real ranks."""

import statistics
import time

import torch
import torch.distributed as dist

REPEATS = 9


def time_all_reduce(num_bytes: int) -> float:
    """Return the median seconds of an all_reduce; all ranks have to call it."""
    x, taken = torch.zeros(max(1, num_bytes // 4)), []
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(x)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
