"""`CUDA_VISIBLE_DEVICES` set too late.

runs on: 4 virtual GPUs
outcome: runs
hardware: GPU
chapter: ch1_environment

The script picks its device and then sets `CUDA_VISIBLE_DEVICES`. CUDA reads the
variable once, when it is first asked for anything, and `is_available()` is such a
question. So the later line changes nothing, and there is no warning: the job runs on
the machine's first GPU, which may be somebody else's. Set the variable in the shell,
before the process, or at least before the first question.
"""

# %% given
import os

import pynvml
import torch


def used():
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(4)]
    return [pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles]


# %% wrong
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
x = torch.ones(1000, device=device)
print("bytes on each of the machine's GPUs:", used())

# %% right
os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
x = torch.ones(1000, device=device)
print("bytes on each of the machine's GPUs:", used())
