"""`CUDA_VISIBLE_DEVICES` set too late.

runs on: one process
outcome: runs
hardware: GPU
chapter: ch1_environment

The script picks its device and then sets `CUDA_VISIBLE_DEVICES`. CUDA reads the
variable once, when it starts, so the later line changes nothing, and there is no
warning. We have no GPU here, so we run the same slip with a variable that the CPU side
of PyTorch reads once: `OMP_NUM_THREADS`. Set such variables in the shell, before the
process.
"""

# %% wrong: python train.py
import os

import torch

os.environ["OMP_NUM_THREADS"] = "1"
print("one thread:", torch.get_num_threads() == 1)

# %% right: OMP_NUM_THREADS=1 python train.py
import torch

print("one thread:", torch.get_num_threads() == 1)
