r"""Invariant encountered: the root was sharded before its blocks.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_fsdp
signature: TypeError: Invariant encountered: value was None when it should not be

You see: `Invariant encountered: value was None when it should not be` from the second
call of `fully_shard`; with a mesh whose axes have names, `Cannot concatenate
overlapping meshes`. Neither text mentions the order.

Cause: each `fully_shard` makes a unit of those parameters of its module that no unit
has yet. The root, called first, takes all of them and turns them into DTensors. The
call for a block takes a DTensor for a tensor-parallel one, and fails to join the two
meshes.

Cure: shard from the inside out: the blocks first, the root last, for what remains.

Next time: look at the order of the calls. `fully_shard` over `model.modules()` goes
from the root downwards: use a list of the blocks instead.

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
