"""One device, two names.

runs on: 1 virtual GPU
outcome: raises
hardware: GPU
chapter: ch5_ddp

The device is stored under a name in capitals and used in lower case. Python has no
notion of a constant: it sees two names, and one of them does not exist.
"""

# %% given
import torch
from torch import nn

# %% wrong
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(2, 1).to(device)

# %% right
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(2, 1).to(device)
print(net.weight.device)
