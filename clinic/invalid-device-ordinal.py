r"""Invalid device ordinal: a rank asks for a GPU that is not there.

class: launch
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: `invalid device ordinal` from `torch.cuda.set_device`, on some ranks only: on
those with a number that is too high.

Cause: there are more processes than visible GPUs, or the script uses the global rank as
a device number. The latter works on the first machine and fails on the second, where
ranks begin at 8 and devices again at 0.

Cure: start as many processes as `torch.cuda.device_count()` says, and use the *local*
rank as the device.

Next time: print rank, local rank and `torch.cuda.device_count()` on each rank.
`CUDA_VISIBLE_DEVICES` may have made the list shorter than the machine's.

Links: https://github.com/cfzd/Ultra-Fast-Lane-Detection/issues/193 (two processes, one GPU)
https://github.com/tatsu-lab/stanford_alpaca/issues/67 (four processes; one was right)
https://github.com/hustvl/Vim/issues/61 (eight processes, four GPUs)
"""

# %% quoted
# Traceback (most recent call last):
#   File "train.py", line 107, in <module>
#     torch.cuda.set_device(args.local_rank)
#   File "torch/cuda/__init__.py", line 261, in set_device
#     torch._C._cuda_setDevice(device)
# RuntimeError: CUDA error: invalid device ordinal

# %% broken
import os

import torch

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)

# %% fixed
import os

import torch

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)

# %% signs
# invalid device ordinal
# Invalid device id|But your machine only has
# device < num_gpus INTERNAL ASSERT FAILED
# Invalid device argument
# insufficient CUDA devices for DDP
# No slot '\d+' specified on host
