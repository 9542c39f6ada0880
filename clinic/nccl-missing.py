r"""Distributed package doesn't have NCCL built in.

class: process group
symptom: crash
runs on: one process
chapter: ch1_environment
signature: Distributed package doesn't have NCCL built in
elsewhere: no GPUs found! or nccl2 requires at least one CUDA device

You see: `init_process_group` fails at once, on Windows, on a Mac, or with torch's CPU
wheel on a Linux machine that has GPUs.

Cause: NCCL is NVIDIA's library for Linux, so wheels for other systems and the CPU wheel
are built without it. A CUDA wheel on a machine without a usable GPU says
"ProcessGroupNCCL is only supported with GPUs" instead, and with torch 2.15 "nccl2
requires at least one CUDA device".

Cure: let torch choose the backend for the device, or write `"gloo"`. If there is a GPU,
install the CUDA wheel.

Next time: `python -c "import torch; print(torch.__version__,
torch.distributed.is_nccl_available(), torch.cuda.is_available())"`.

Links: https://github.com/pytorch/pytorch/issues/159742 (mp.spawn with nccl on Windows)
https://github.com/tczhangzhi/pytorch-distributed/issues/15 (on Windows; gloo instead)
"""

# %% given
import torch.distributed as dist

alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}

# %% broken
backend = "nccl"
dist.init_process_group(backend, **alone)
print("backend:", dist.get_backend())

# %% fixed
backend = dist.get_default_backend_for_device("cpu")
dist.init_process_group(backend, **alone)
print("backend:", dist.get_backend())

# %% signs
# istributed package doesn.?t have NCCL|the distributed NCCL backend is not available
# ProcessGroupNCCL is only supported with GPUs, no GPUs found
# nccl2 requires at least one CUDA device
# with: NCCL support is not compiled
# ProcessGroupNCCL'? (?:is not defined|from)
# No rendezvous handler for env:
# no attribute '_?ProcessGroupNCCL
