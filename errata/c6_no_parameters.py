"""A model without layers.

runs on: one process
outcome: raises
chapter: ch6_model_parallel

The listing leaves the layers to the reader, as a placeholder. Filled with nothing, the
model has no parameters, and the optimizer says so. Lists of layers need `nn.ModuleList`
or `nn.Sequential` too: in a plain list, PyTorch does not find them.
"""

# %% given
import torch
from torch import nn

# %% wrong
net = nn.Sequential(*[])  # put your layers here
torch.optim.SGD(net.parameters(), lr=0.1)

# %% right
net = nn.Sequential(*[nn.Linear(2, 2), nn.Linear(2, 1)])
torch.optim.SGD(net.parameters(), lr=0.1)
print(len(list(net.parameters())), "parameters")
