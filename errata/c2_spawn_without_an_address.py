"""`mp.spawn` without a place to meet.

runs on: 2 virtual GPUs
outcome: raises
chapter: ch5_ddp

`mp.spawn` starts processes and gives each its index, nothing else. The group also needs
a meeting place. Set `MASTER_ADDR` and `MASTER_PORT`, or name a file that all processes
can see, or let `torchrun` do it.
"""

# %% wrong: python train.py
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)


if __name__ == "__main__":
    mp.spawn(work, args=(1,), nprocs=1)

# %% right: python train.py
import pathlib

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world_size):
    torch.cuda.set_device(rank)
    here = pathlib.Path("meet").resolve().as_uri()
    dist.init_process_group("nccl", here, rank=rank, world_size=world_size)
    print(f"rank {rank} of {dist.get_world_size()}")
    dist.all_reduce(torch.ones(1, device="cuda"))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
