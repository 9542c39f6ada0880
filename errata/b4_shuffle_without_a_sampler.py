"""Ranks that draw the same samples.

runs on: 2 ranks
outcome: runs
chapter: ch5_ddp

DDP with `DataLoader(shuffle=True)` and no sampler raises nothing. Each rank shuffles
all of the data for itself. After half an epoch on two ranks, every sample should have
been drawn once; here a quarter of them never was. (With equal seeds it is half of
them.)
"""

# %% given
from torch.utils.data import DataLoader, DistributedSampler

torch.manual_seed(rank)
data = range(1000)


def distinct(batch):
    drawn = [None] * world_size
    dist.all_gather_object(drawn, batch.tolist())
    return len(set(drawn[0]) | set(drawn[1]))


# %% wrong
loader = DataLoader(data, batch_size=500, shuffle=True)
print(distinct(next(iter(loader))), "of 1000 samples;", len(loader), "steps per epoch")

# %% right
loader = DataLoader(data, batch_size=500, sampler=DistributedSampler(data))
print(distinct(next(iter(loader))), "of 1000 samples;", len(loader), "steps per epoch")
