"""A new sampler for each epoch.

runs on: 2 ranks
outcome: runs
chapter: ch5_ddp

The training function makes its sampler inside the loop. A new sampler starts at epoch
0, so each epoch has the order of the first. Make it once, and tell it the epoch.
"""

# %% given
from torch.utils.data import DistributedSampler

data = range(12)

# %% wrong
for epoch in range(2):
    sampler = DistributedSampler(data)
    print("epoch", epoch, list(sampler))

# %% right
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    print("epoch", epoch, list(sampler))
