r"""Expected more than 1 value per channel: BatchNorm got one sample.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: ValueError: Expected more than 1 value per channel when training

You see: the last step of an epoch fails, or all of them once the job uses more GPUs.

Cause: in training BatchNorm divides by the variance of the batch, and a single value
has none. What counts is the batch per rank: a global batch of 8 on 8 ranks is one
sample each, and the last batch of an epoch may hold just one.

Cure: `drop_last=True` in the training loader, and at least two samples per rank. With
one large sample per rank use `SyncBatchNorm`, which takes the variance over all ranks,
or GroupNorm.

Next time: the shape in the message begins with 1: that is the rank's batch.

Links: https://github.com/fastai/fastai/issues/1352 (last batch of size 1; drop_last)
https://github.com/openvinotoolkit/nncf/pull/379 (1000 samples in batches of 3 leave one)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

samples = torch.arange(10.0).view(10, 1)
sampler = DistributedSampler(samples, world_size, rank, shuffle=False)
ddp = DistributedDataParallel(nn.BatchNorm1d(1))

# %% broken
for x in DataLoader(samples, batch_size=4, sampler=sampler):
    ddp(x).mean().backward()
    print("batch of", len(x))

# %% fixed
for x in DataLoader(samples, batch_size=4, sampler=sampler, drop_last=True):
    ddp(x).mean().backward()
    print("batch of", len(x))

# %% signs
# Expected more than 1 value per channel when training
