r"""One rank has one batch more than the others.

class: DDP
symptom: hang
runs on: 2 ranks
chapter: ch5_ddp
signature: rank 0 waits in .*backward\(\)

You see: the job hangs at the end of an epoch, with the GPUs at 100 % (NCCL) or idle
(gloo). If the rank with fewer batches exits, the other rank fails with a closed
connection.

Cause: each `backward` averages the gradients of all ranks, so the rank that still has a
batch waits for a rank that has finished. Batch counts differ when you split files or
filter samples, or with iterable data sets. With `DistributedSampler`, they don't.

Cure: give every rank the same number of batches, by `drop_last`, padding or
`DistributedSampler`. Or put `with ddp.join():` around the loop, so that a rank that has
finished answers with zeros. It answers only DDP's collectives, not those of
`SyncBatchNorm` or your own.

Next time: print the number of batches on each rank before the epoch. To find the step,
use `join(throw_on_early_termination=True)`: then all ranks fail at the same step. With
NCCL, `torchfrtrace` names the missing ranks from the flight recorder's dumps.

Links: https://github.com/pytorch/pytorch/issues/38174 (proposal of join for ranks with unequal inputs)
https://github.com/microsoft/PyMarlin/issues/80 (hang with an uneven number of batches)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

batches = [torch.ones(2, 1)] * (3 - rank)
ddp = DistributedDataParallel(nn.Linear(1, 1))

# %% broken
for x in batches:
    ddp(x).mean().backward()
print(f"{len(batches)} batches done")

# %% fixed
with ddp.join():
    for x in batches:
        ddp(x).mean().backward()
print(f"{len(batches)} batches done")

# %% signs
# exhausted all inputs
# at least one rank that exhausted inputs
