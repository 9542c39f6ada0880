r"""Cannot re-initialize CUDA in forked subprocess.

class: launch
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: `Cannot re-initialize CUDA in forked subprocess`, from a process that you
started or from a worker of a DataLoader.

Cause: fork copies the process, but not its connection to the driver. Once the parent
has touched CUDA (a `.cuda()`, in some versions even asking for the number of devices),
its forked children cannot use it.

Cure: start the children with `spawn` or `forkserver`. In a Dataset make only CPU
tensors, and move the batch in the training loop.

Next time: search for what uses CUDA at import time and in `Dataset.__getitem__`:
`torch.cuda.is_initialized()` just before the processes start must be False.

Links: https://github.com/pytorch/pytorch/issues/40403 (CUDA and multiprocessing; many causes)
https://github.com/traveller59/spconv/issues/408 (CUDA code inside of a DataLoader)
"""

# %% quoted
# RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with
# multiprocessing, you must use the 'spawn' start method

# %% given
import torch
import torch.multiprocessing as mp

torch.ones(1, device="cuda")


def worker(rank):
    print(torch.ones(1, device="cuda"))


# %% broken
if __name__ == "__main__":
    mp.start_processes(worker, nprocs=2, start_method="fork")

# %% fixed
if __name__ == "__main__":
    mp.start_processes(worker, nprocs=2, start_method="spawn")

# %% signs
# [Cc]annot re-?initialize \w+ in (?:a )?fork
# To use \w+ with multiprocessing, you must use the 'spawn'
# maybe: (?:CUDA|cuda)[\w ]* error:? (?:\(3\) ?: )?initialization error
# can't create new processes if CUDA is already initialized
# To launch a multi-GPU training from your notebook
# CUDA has been initialized before
# Error 3: initialization error
