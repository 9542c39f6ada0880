"""`device_ids` for a model on the CPU.

runs on: 2 ranks
outcome: raises
chapter: ch5_ddp

`device_ids` tells DDP to which GPU it should move the inputs. A CPU has no index to
move to, so DDP refuses. If you move the inputs yourself, you need `device_ids` neither
on a GPU nor on a CPU.
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

net = nn.Linear(2, 1)

# %% wrong
ddp = DistributedDataParallel(net, device_ids=[local_rank])

# %% right
device = next(net.parameters()).device
ddp = DistributedDataParallel(net)
print(ddp(torch.ones(1, 2).to(device)).shape)
