r"""DataLoader worker is killed by signal: Killed (out of memory).

class: data
symptom: crash
runs on: one process
chapter: ch5_ddp
signature: RuntimeError: DataLoader worker .* is killed by signal: Killed

You see: `DataLoader worker (pid …) is killed by signal: Killed`, often hours into a
run, on one rank; then the other ranks fail in a collective.

Cause: only the kernel sends SIGKILL unasked: the machine's memory is full, or the job's
memory limit is reached. Each rank starts `num_workers` processes: 8 ranks with 8
workers are 64. A forked worker shares the dataset's memory until it writes to it. But
even reading a Python object writes to its reference count, so every worker copies a
list of objects page by page. A tensor has one count for all of its rows. (Here we
imitate the kernel: the copying is real, but the demo kills the worker at 32 MiB.)

Cure: keep large tables as one tensor, array or memory map instead of lists and dicts of
Python objects; then fewer workers, and less prefetching.

Next time: `dmesg | grep -i kill` (or the job's `memory.events`) names the process and
its size. Watch `Private_Dirty` in a worker's `/proc/PID/smaps_rollup` over an epoch:
does it grow?

Links: https://github.com/pytorch/pytorch/issues/13246 (lists are replicated in all workers; why, and what helps)
https://github.com/pytorch/pytorch/issues/20433 (memory grows within an epoch: lists in worker processes)
"""

# %% given
import itertools
import os
import re
import signal

import torch
from torch.utils.data import DataLoader


def of_its_own(pid):
    """Return the MiB that a process shares with no other."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return int(re.search(r"Private_Dirty: +(\d+)", file.read())[1]) >> 10


def epoch(rows):
    """Read in one worker; as the kernel does, end it if it takes too much."""
    fork = {"num_workers": 1, "multiprocessing_context": "fork"}
    batches = iter(DataLoader(rows, 1_000, collate_fn=len, **fork))
    lengths = [*itertools.islice(batches, 15)]
    (worker,) = batches._workers
    if of_its_own(worker.pid) > 32:
        os.kill(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    return sum(lengths) + sum(batches)


# %% broken
rows = [bytes(3_000) for _ in range(20_000)]
print("rows read:", epoch(rows))

# %% fixed
rows = torch.zeros(20_000, 3_000, dtype=torch.uint8)
print("rows read:", epoch(rows))

# %% signs
# is killed by signal: Killed
# maybe: DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:exited unexpectedly|is killed by(?! signal: (?:Segm|Abor|Bus|Floa|Ille)))
# unless: killed by signal: (?:Segmentation|Aborted|Floating|Illegal)|Unexpected (?:segmentation fault|floating-point exception)
