"""A whole module in a file.

runs on: one process
outcome: raises
chapter: ch3_save_load

Saving the module itself was common. Since PyTorch 2.6 `torch.load` reads tensors and
plain containers only, because a pickled object may run any code when it is loaded. Save
the state dict, and make the module from its class.
"""

# %% given
import torch
from torch import nn

net = nn.Linear(2, 1)

# %% wrong
torch.save(net, "net.pt")
torch.load("net.pt")

# %% right
torch.save(net.state_dict(), "net.pt")
fresh = nn.Linear(2, 1)
print(fresh.load_state_dict(torch.load("net.pt")))
