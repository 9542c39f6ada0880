"""Rank 1 leaves out a collective; with "one-gpu", both ranks are on one GPU."""

import os
import sys
import time

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(0 if "one-gpu" in sys.argv else rank)
dist.init_process_group("nccl")
print(f"pid {os.getpid()}", flush=True)
total = torch.ones(1, device="cuda")
dist.all_reduce(total)
if rank == 0:
    dist.broadcast(total, 0)
time.sleep(60)
