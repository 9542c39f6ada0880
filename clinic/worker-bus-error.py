r"""A container with too little shared memory.

class: data
symptom: crash
runs on: one process
chapter: ch5_ddp
signature: RuntimeError: DataLoader worker .* is killed by signal: Bus error

You see: `DataLoader worker (pid …) is killed by signal: Bus error`, in a container,
soon after the start, once `num_workers` is above 0.

Cause: a worker hands its batches over in shared memory, files in `/dev/shm`. Docker
gives a container 64 MB of it. Making a file there succeeds; writing to a page that
cannot be had raises SIGBUS. All ranks of a machine share it. (Here the worker sends
itself the signal: torch's text is the same.)

Cure: `docker run --shm-size=16g` or `--ipc=host`; in Kubernetes a memory-backed volume
on `/dev/shm`. Where you cannot, `num_workers=0`, or smaller batches and less
prefetching.

Next time: `df -h /dev/shm` inside the container while it trains.

Links: https://github.com/pytorch/pytorch/issues/5040 (the message had no hint at shared memory then)
https://github.com/hkchengrex/STCN/issues/132 (the same message; insufficient shared memory)
"""

# %% given
import os
import signal

from torch.utils.data import DataLoader


def read(loader):
    """All batches. Of a failure: the first message, which torch chains to another."""
    try:
        return [batch.tolist() for batch in loader]
    except RuntimeError as failure:
        raise failure.__cause__ or failure from None


# %% broken
class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGBUS)  # as the kernel: no page left
        return torch.zeros(2)


workers = {"num_workers": 1, "multiprocessing_context": "fork"}
print(read(DataLoader(Images(), **workers)))


# %% fixed
class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.zeros(2)


workers = {"num_workers": 0}
print(read(DataLoader(Images(), **workers)))

# %% signs
# is killed by signal: Bus error
# Unexpected bus error encountered in worker
# dataloader's workers are out of shared memory
# insufficient shared memory \(shm\)
# maybe: unable to (?:open|write to|mmap) (?:shared memory object|file <\S*/?torch_)
