r"""The kernel kills a worker that prepares data.

class: data
symptom: crash
runs on: one process
chapter: ch5_ddp
signature: RuntimeError: DataLoader worker .* is killed by signal: Killed

You see: `DataLoader worker (pid …) is killed by signal: Killed`, often hours into a
run, on one rank; then the other ranks fail in a collective.

Cause: nobody but the kernel sends SIGKILL unasked: the machine, or the job's memory
limit, is full. Each rank starts `num_workers` processes: 8 ranks with 8 workers are 64
copies of the dataset object. Python lists are copied page by page as their reference
counts change. (Here the cell plays the kernel.) Torch hears of the death by SIGCHLD.

Cure: fewer workers, less prefetching, and large tables as one tensor, array or memory
map instead of lists and dicts of Python objects.

Next time: `dmesg | grep -i kill` (or the job's `memory.events`) names the process and
its size. Watch the resident memory of the workers over an epoch: does it grow?

Links: https://github.com/pytorch/pytorch/issues/20433 (memory grows within an epoch: lists in worker processes)
"""

# %% given
import os
import signal

from torch.utils.data import DataLoader

fork = {"multiprocessing_context": "fork"}  # as a script on Linux


def out_of_memory(batches):
    """Play the kernel on a machine with no room for a second process."""
    for worker in getattr(batches, "_workers", []):
        os.kill(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)


# %% broken
batches = iter(DataLoader(range(4), num_workers=1, **fork))
print("first batch:", next(batches).tolist())
out_of_memory(batches)
print("the others:", [batch.tolist() for batch in batches])

# %% fixed
batches = iter(DataLoader(range(4), num_workers=0))
print("first batch:", next(batches).tolist())
out_of_memory(batches)
print("the others:", [batch.tolist() for batch in batches])

# %% signs
# is killed by signal: Killed
# maybe: DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:exited unexpectedly|is killed by)
