"""A group without a launcher.

runs on: 2 virtual GPUs
outcome: raises
chapter: ch4_ranks

`init_process_group` reads its rank, and where to meet the others, from the environment.
A plain `python train.py` sets nothing there. The code is right; the command is not.
"""

# %% wrong: python train.py
import torch.distributed as dist

dist.init_process_group("nccl")
print(f"rank {dist.get_rank()} of {dist.get_world_size()}")

# %% right: torchrun --standalone train.py
import torch.distributed as dist

dist.init_process_group("nccl")
print(f"rank {dist.get_rank()} of {dist.get_world_size()}")
dist.destroy_process_group()
