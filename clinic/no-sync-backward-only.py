r"""no_sync() has no effect: only the backward pass is inside.

class: performance
symptom: slow
runs on: 2 ranks
chapter: ch5_ddp
signature: 4 all-reduces for 4 micro-batches instead of 1

You see: gradient accumulation under `no_sync()` is as slow as without it. The gradients
are right.

Cause: DDP decides in the *forward* whether the next backward will reduce; `no_sync()`
only sets the flag that the forward reads, so around `backward()` alone it comes too
late.

Cure: put both forward and backward inside the context.

Next time: count: profile one accumulation and look for `gloo:all_reduce` or
`ncclDevKernel_AllReduce`. There should be one per bucket, not one per micro-batch.

Links: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
(what no_sync skips, and when)
"""

# %% given
from contextlib import nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel

group = dist.distributed_c10d._get_default_group()
ddp = DistributedDataParallel(nn.Linear(4, 1))
batches = torch.ones(4, 2, 4)
for _ in range(2):  # then DDP has its final buckets
    ddp(batches[0]).sum().backward()
before = group._get_sequence_number_for_group()

# %% broken
for i, x in enumerate(batches):
    last = i == len(batches) - 1
    loss = ddp(x).mean() / len(batches)
    with nullcontext() if last else ddp.no_sync():
        loss.backward()
calls = group._get_sequence_number_for_group() - before
print("all-reduces:", calls)

# %% fixed
for i, x in enumerate(batches):
    last = i == len(batches) - 1
    with nullcontext() if last else ddp.no_sync():
        loss = ddp(x).mean() / len(batches)
        loss.backward()
calls = group._get_sequence_number_for_group() - before
print("all-reduces:", calls)

# %% invariant: one all-reduce for one optimizer step
assert calls == 1, f"{calls} all-reduces for 4 micro-batches instead of 1"
