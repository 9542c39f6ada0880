r"""One rank has a batch more than the other.

class: DDP
symptom: hang
runs on: 2 ranks
chapter: ch5_ddp
signature: rank 0 waits in .*backward\(\)

You see: the job stops at the end of an epoch, with the GPUs at 100 % (NCCL) or idle
(gloo). If the short rank exits, the other one fails with a closed connection.

Cause: each `backward` reduces the gradients of all ranks. The rank that still has a
batch waits for one that is done. Files that are dealt out to ranks, filters per sample,
and iterable data sets give unequal numbers; `DistributedSampler` does not.

Cure: equal numbers of batches: `drop_last`, padding, or `DistributedSampler`. Or
`with ddp.join():` around the loop, which lets a rank that is done answer with zeros. It
answers DDP's collectives only: not those of `SyncBatchNorm`, and not your own.

Next time: print the number of batches on each rank before the epoch. To find the
step, use `join(throw_on_early_termination=True)`: all ranks then fail at the same one.
With NCCL, `torchfrtrace` over the flight recorder's dumps names the ranks that are
missing.

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
