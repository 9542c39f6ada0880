"""Every epoch in the same order.

runs on: 2 ranks
outcome: runs
chapter: ch5_ddp

The sampler draws its order from seed + epoch, and it learns the epoch from `set_epoch`
only. The article's loop never calls it, so the second epoch repeats the first.
"""

# %% given
from torch.utils.data import DistributedSampler

sampler = DistributedSampler(range(12))

# %% wrong
for epoch in range(2):
    print("epoch", epoch, list(sampler))

# %% right
for epoch in range(2):
    sampler.set_epoch(epoch)
    print("epoch", epoch, list(sampler))
