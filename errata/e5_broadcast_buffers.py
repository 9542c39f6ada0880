"""An option with a new name.

runs on: 2 ranks
outcome: warns
chapter: ch5_ddp

`broadcast_buffers` was the name when the notes were written. In PyTorch 2.13 it still
works, but warns. The new name says when it happens: before each forward.
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

net = nn.BatchNorm1d(2)

# %% wrong
ddp = DistributedDataParallel(net, broadcast_buffers=False)

# %% right
ddp = DistributedDataParallel(net, forward_sync_buffers=False)
print(ddp(torch.ones(4, 2)).shape)
