r"""Gradient accumulation all-reduces in every micro-batch.

class: performance
symptom: slow
runs on: 2 ranks
chapter: ch5_ddp
signature: 8 all-reduces for one optimizer step instead of 1

You see: accumulating 8 micro-batches costs as much communication as 8 steps. On a slow
network the accumulation gains nothing.

Cause: DDP reduces in each backward, because it cannot know that the optimizer will not
step. The result is the same, since the mean of sums is the sum of means, but the
traffic is 8 times as much.

Cure: `with ddp.no_sync():` around forward and backward of all micro-batches but the
last; FSDP2 has `set_requires_gradient_sync(False)`, at the price of whole gradients in
the memory of each rank until the last micro-batch.

Next time: measure the bytes sent per optimizer step, with the interface's counters or a
profile: they should not grow with the number of micro-batches.

Links: https://github.com/Lightning-AI/pytorch-lightning/issues/4092 (what no_sync saves)
"""

# %% given
from contextlib import nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel

group = dist.distributed_c10d._get_default_group()
ddp = DistributedDataParallel(nn.Linear(4, 1))
batches = torch.ones(8, 2, 4)
for _ in range(2):  # then DDP has its final buckets
    ddp(batches[0]).sum().backward()
before = group._get_sequence_number_for_group()

# %% broken
for x in batches:
    loss = ddp(x).mean() / len(batches)
    loss.backward()
calls = group._get_sequence_number_for_group() - before
print("all-reduces:", calls)

# %% fixed
for i, x in enumerate(batches):
    with ddp.no_sync() if i < len(batches) - 1 else nullcontext():
        loss = ddp(x).mean() / len(batches)
        loss.backward()
calls = group._get_sequence_number_for_group() - before
print("all-reduces:", calls)

# %% invariant: one all-reduce for one optimizer step
assert calls == 1, f"{calls} all-reduces for one optimizer step instead of 1"
