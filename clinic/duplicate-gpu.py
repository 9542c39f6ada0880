r"""Duplicate GPU detected: two ranks use the same GPU.

class: launch
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: `ncclInvalidUsage ... Duplicate GPU detected`, at the first collective, at a
barrier or in `DistributedDataParallel(...)`.

Cause: NCCL wants one GPU per rank, but a process that has not chosen one uses the
current device, which is 0 in every process. The message names two ranks and the bus
number of the GPU, not its index.

Cure: call `torch.cuda.set_device(local_rank)` before the group is formed, and pass
`device_id=` when you form it, so that even a barrier knows which GPU to use.

Next time: `nvidia-smi` shows several of your processes on GPU 0, and none elsewhere.

Links: https://github.com/verl-project/verl/issues/161 (rank 1 and rank 0 both on one device)
https://github.com/Peterande/D-FINE/issues/289 (a default device in the script was the cause)
https://github.com/NVIDIA/Megatron-LM/issues/661 (all eight ranks, at a barrier)
"""

# %% quoted
# torch.distributed.DistBackendError: NCCL error in:
# ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, invalid usage (run with
# NCCL_DEBUG=WARN for details), NCCL version 2.20.5
# ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
# Last error:
# Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10

# %% broken
import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))

# %% fixed
import os

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
dist.all_reduce(torch.ones(1, device="cuda"))

# %% signs
# Duplicate GPU detected ?: rank \d+ and rank \d+ both on CUDA device
# maybe: ncclInvalidUsage
# maybe: NCCL [Ee]rror(?: in)?:? .*invalid usage|nccl\w+ failed: invalid usage
# maybe: [Dd]uplicate GPU detected
