"""`DataParallel` on GPUs that are not there.

runs on: one process
outcome: runs
hardware: GPU
chapter: ch2_data_parallel

`device_ids=[0, 3]` works if the model lives on GPU 0, the first of the list; the
section does not say so. And without any GPU nothing is checked at all: the wrapper
only calls your model, and it looks as if two devices had worked. So look at what it
uses. (The right version runs on four virtual GPUs.)
"""

# %% given
import torch
from torch import nn

net = nn.Linear(2, 1)

# %% wrong
parallel = nn.DataParallel(net, device_ids=[0, 3])
print("output:", parallel(torch.ones(8, 2)).shape)
print("devices used:", parallel.device_ids)

# %% right
from allranks import vgpu

vgpu.plug_in(4, kind="cuda")
parallel = nn.DataParallel(net.to("cuda:3"), device_ids=[0, 3])
try:
    parallel(torch.ones(8, 2))
except RuntimeError as error:
    print(error)
parallel = nn.DataParallel(net.to("cuda:0"), device_ids=[0, 3])
print("output:", parallel(torch.ones(8, 2)).shape)
print("devices used:", parallel.device_ids)
