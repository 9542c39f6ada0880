r"""CUDA is not available: a per-GPU launch on a machine without GPUs.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: ValueError: Cuda is not available

You see: torchrun itself fails, before any script starts.

Cause: `--nproc-per-node gpu` asks torch how many GPUs there are. With a CPU build of
torch, in a container without the driver, or with an empty `CUDA_VISIBLE_DEVICES`, torch
finds none and cannot answer.

Cure: give a number. `--nproc-per-node auto` starts one process per GPU, or one per CPU
core if there are no GPUs, which may be many processes.

Next time: `python -c "import torch; print(torch.cuda.is_available())"` in the same
shell and container.

Links: https://github.com/NVIDIA-NeMo/Automodel/pull/3775 (a launcher that asks for the GPUs first)
"""

# %% broken: torchrun --nproc-per-node gpu train.py
import os

print(f"rank {os.environ['RANK']}\n", end="")

# %% fixed: torchrun --nproc-per-node 2 train.py
import os

print(f"rank {os.environ['RANK']}\n", end="")

# %% signs
# ValueError: Cuda is not available
# Unsupported nproc_per_node value: gpu
