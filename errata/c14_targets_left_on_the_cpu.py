"""Targets that stay on the CPU.

runs on: 2 virtual GPUs
outcome: raises
hardware: GPU
chapter: ch2_data_parallel

In the same listing the loader's targets go into the loss as they came. DataParallel
cuts and moves the *inputs*, gathers the outputs on the first device, and never sees the
targets, because the loss is computed outside it. So the loss gets an output on the
GPU and a target on the CPU. Send the targets to the output's device.
"""

# %% given
import torch
from torch import nn

parallel = nn.DataParallel(nn.Linear(2, 1).to("cuda:0"))
x, target = torch.ones(4, 2), torch.zeros(4, 1)  # as a loader gives them
output = parallel(x)

# %% wrong
nn.functional.mse_loss(output, target)

# %% right
loss = nn.functional.mse_loss(output, target.to(output.device))
print("loss on", loss.device)
