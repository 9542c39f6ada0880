r"""One process per GPU, on a machine without GPUs.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: ValueError: Cuda is not available

You see: torchrun itself fails, before any script starts.

Cause: `--nproc-per-node gpu` asks torch how many GPUs there are. On a CPU build of
torch, in a container without the driver, or with an empty `CUDA_VISIBLE_DEVICES`, there
is no answer.

Cure: give a number. `--nproc-per-node auto` takes the GPUs, or one process per CPU core
where there are none, which may be many.

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
