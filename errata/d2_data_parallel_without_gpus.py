"""`DataParallel` on GPUs that are not there.

runs on: one process
outcome: runs
hardware: GPU
chapter: ch2_data_parallel

`device_ids=[0, 3]` works if the model lives on GPU 0, the first of the list; the
section does not say so. And without any GPU nothing is checked: the wrapper calls your
model and does no more. It looks as if four devices worked. Count first, and say what
you found.
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
wanted = [0, 3]
found = torch.cuda.device_count()
if max(wanted) >= found:
    print(f"device_ids={wanted} needs 4 GPUs; this machine has {found}")
else:
    parallel = nn.DataParallel(net.to(f"cuda:{wanted[0]}"), device_ids=wanted)
