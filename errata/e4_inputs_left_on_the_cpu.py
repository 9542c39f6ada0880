"""Inputs on the CPU, and the wrong suspect.

runs on: 2 virtual GPUs
outcome: raises
hardware: GPU
chapter: ch5_ddp

The notes leave the inputs on the CPU and blame `broadcast_buffers=False` for the error.
But the same error comes without any DDP. It is `device_ids` that makes DDP move the
inputs; if you don't pass it, you have to move them yourself.
"""

# %% given
import torch
from torch import nn

net = nn.Linear(2, 1).to("cuda:0")
x = torch.ones(3, 2)

# %% wrong
net(x)

# %% right
x = x.to(next(net.parameters()).device)
print(net(x).device)
