r"""Invariant encountered: the root was sharded before its blocks.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_fsdp
signature: TypeError: Invariant encountered: value was None when it should not be

You see: `Invariant encountered: value was None when it should not be` from the second
call of `fully_shard`. If the axes of your mesh have names, you see `Cannot concatenate
overlapping meshes` instead. Neither message mentions the order.

Cause: each call of `fully_shard` takes those of its module's parameters that don't
belong to a unit yet, and makes them a unit. Here the root comes first, so it takes all
parameters and turns them into DTensors. The block's call then mistakes these DTensors
for tensor-parallel ones. It tries to join their mesh with its own, and fails.

Cure: shard from the inside out. Call `fully_shard` on the blocks first, and on the root
last. The root takes what remains.

Next time: look at the order of the calls. A loop over `model.modules()` begins with the
root, so loop over a list of the blocks instead.

Links: https://github.com/pytorch/pytorch/pull/117881 (fully_shard has to be applied bottom-up)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

# %% broken
fully_shard(model)
for block in model:
    fully_shard(block)
print(model(torch.ones(2, 4)).shape)

# %% fixed
for block in model:
    fully_shard(block)
fully_shard(model)
print(model(torch.ones(2, 4)).shape)

# %% signs
# Cannot concatenate overlapping meshes
# maybe: Invariant encountered: value was None when it should not be
# with: fully_shard|torch.distributed.fsdp
