"""Say who I am: torchrun --standalone --nproc-per-node 4 hello.py"""

import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {world_size}")
dist.destroy_process_group()
