"""Wait for a second rank, which nobody starts."""

import os

import torch
import torch.distributed as dist

rank = torch.cuda.current_device()  # 0 in each process
os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(torch.cuda.device_count())}
os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
dist.init_process_group("nccl")
