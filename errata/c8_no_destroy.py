"""A group that is never ended.

runs on: 2 virtual GPUs
outcome: warns
hardware: GPU
chapter: ch4_ranks

The worker ends without `destroy_process_group`. With gloo you are not told. With nccl,
PyTorch warns at exit, since a rank that still talks while another has gone can hang.
End the group last.
"""

# %% wrong: torchrun --standalone --nproc-per-node 2 train.py
import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
print(f"rank {dist.get_rank()} has trained")

# %% right: torchrun --standalone --nproc-per-node 2 train.py
import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
print(f"rank {dist.get_rank()} has trained")
dist.destroy_process_group()
