"""A DataParallel model that never moves.

runs on: 2 virtual GPUs
outcome: raises
hardware: GPU
chapter: ch2_data_parallel

The listing wraps its model and trains it, and no line of it moves the model to a GPU.
DataParallel copies the module from the first of its devices in every forward, so it
looks for the weights there and stops. Without a GPU the same listing runs, because then
the wrapper does nothing, and nothing checks where the model is.
"""

# %% given
import torch
from torch import nn

net = nn.Linear(2, 1)
x = torch.ones(4, 2)

# %% wrong
parallel = nn.DataParallel(net)
print(parallel(x).shape)

# %% right
parallel = nn.DataParallel(net.to("cuda:0"))
print(parallel(x).shape, "on", parallel.device_ids)
