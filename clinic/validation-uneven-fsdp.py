r"""FSDP validation hangs: ranks have different numbers of batches.

class: TP/FSDP2
symptom: hang
runs on: 2 ranks
chapter: ch12_fsdp
signature: rank 0 waits in `total \+= model\(

You see: no message. Training runs, and the job hangs in the first validation or soon
after it. The timeout messages of NCCL's watchdog show two different collectives with
the same number (`SeqNum`): the all-gather of a forward on the rank that still has a
batch, and an all-reduce (the mean of the loss) on the other ranks.

Cause: each forward of a sharded model gathers weights from all ranks, even under
`no_grad`, so all ranks must run the same number of forward passes. Training takes a
fixed number of steps. But validation goes on until a stream is empty, and packed or
filtered samples give the ranks different numbers of batches.

Cure: run the same number of batches on all ranks: the smallest number, as below. If you
can't know the number beforehand, agree before each batch: all-reduce (MIN) a flag, 1 if
you have a batch, and stop when it is 0. To lose no sample, let a rank without data run
a dummy batch, and don't count its loss. (DDP has `join()` for this; FSDP has nothing
like it.)

Next time: print the number of validation batches of each rank before the loop.

Links: https://github.com/PrimeIntellect-ai/prime-rl/issues/2515 (validation until the data end, under FSDP2)
https://github.com/pytorch/torchtitan/issues/1618 (ranks with different numbers of validation batches)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

layers = [fully_shard(nn.Linear(4, 4)), fully_shard(nn.Linear(4, 1))]
model = fully_shard(nn.Sequential(*layers)).eval()
batches = [torch.ones(2, 4)] * (3 - rank)
total = 0.0

# %% broken
with torch.no_grad():
    for x in batches:
        total += model(x).mean()
print("validated")

# %% fixed
least = torch.tensor(len(batches))
dist.all_reduce(least, op=dist.ReduceOp.MIN)
with torch.no_grad():
    for x in batches[:least]:
        total += model(x).mean()
print("validated")
