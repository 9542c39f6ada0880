"""An optimizer that nobody makes.

runs on: one process
outcome: raises
chapter: ch5_ddp

The loop steps an optimizer that was never created. Make it after the model is on its
device, so that it holds the parameters that will be trained.
"""

# %% given
import torch
from torch import nn

net = nn.Linear(2, 1)
loss = net(torch.ones(1, 2)).sum()

# %% wrong
loss.backward()
optimizer.step()

# %% right
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loss.backward()
optimizer.step()
print(net.weight.grad.tolist())
