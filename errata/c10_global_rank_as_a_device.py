"""The global rank as a device.

runs on: 2 virtual GPUs
outcome: raises
hardware: GPU
chapter: ch4_ranks

`.cuda(rank)` works on one node, where rank and local rank are the same. Here is the
first process of a second node with two GPUs: its rank is 2, but there is no third GPU.
"""

# %% given
import torch
from torch import nn

rank, local_rank = 2, 0  # the first process on the second of two nodes
net = nn.Linear(2, 1)

# %% wrong
net.cuda(rank)

# %% right
print(net.cuda(local_rank).weight.device)
