"""nccl on a machine without a GPU.

runs on: one process
outcome: raises
elsewhere: no GPUs found! or nccl2 requires at least one CUDA device
chapter: ch4_ranks

The article calls nccl the default. There is a default *per device*: nccl for a GPU,
gloo for the CPU. A CPU build of PyTorch has no nccl at all, so ask PyTorch which
backend belongs to the device that you have.
"""

# %% given
import torch
import torch.distributed as dist

alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}

# %% wrong
dist.init_process_group("nccl", **alone)

# %% right
device = torch.device("cpu")
backend = dist.get_default_backend_for_device(device)
dist.init_process_group(backend, **alone)
print(dist.get_backend())
dist.destroy_process_group()
