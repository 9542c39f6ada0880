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
counts change. (Here the worker plays the kernel and kills itself.)

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

workers = {"num_workers": 1, "multiprocessing_context": "fork"}


def read(loader):
    """All batches. Of a failure: the first message, which torch chains to another."""
    try:
        return [batch.tolist() for batch in loader]
    except RuntimeError as failure:
        raise failure.__cause__ or failure from None


# %% broken
class Table(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel, out of memory


print(read(DataLoader(Table(), **workers)))


# %% fixed
class Table(torch.utils.data.Dataset):
    rows = torch.arange(4)  # one block of memory, shared by all workers

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.rows[index]


print(read(DataLoader(Table(), **workers)))

# %% signs
# is killed by signal: Killed
# maybe: DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly
