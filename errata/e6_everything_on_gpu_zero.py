"""Every rank on GPU 0.

runs on: 2 ranks
outcome: runs
hardware: GPU
chapter: ch4_ranks

The demo sets no device. "cuda" without a number is the current device, and that is
number 0 in each process: all ranks start there, and GPU 0 is full while the others are
empty. It also has no sampler and does not end its group: {ref}`ch5_ddp` has both. (Two
ranks, each with virtual GPUs in place of the machine's two.)
"""

# %% given
import torch
from allranks import vgpu

vgpu.plug_in(2, kind="cuda")


def used():
    return [torch.cuda.memory_allocated(i) for i in range(2)]


# %% wrong
x = torch.ones(1000, device="cuda")
print("bytes on GPU 0 and 1:", used())

# %% right
torch.cuda.set_device(local_rank)
x = torch.ones(1000, device="cuda")
print("bytes on GPU 0 and 1:", used())
