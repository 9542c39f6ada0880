r"""FSDP state has already been lazily initialized: a block ran first.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_fsdp
signature: RuntimeError: FSDP state has already been lazily initialized for 0

You see: `FSDP state has already been lazily initialized for 0`, though the forward
worked before you sharded the model. The message adds that the root must run first.

Cause: the first forward decides which unit is the root: the unit that runs first. So a
warm-up, a shape check or feature extraction that calls a block turns this block into a
root of its own. When the whole model runs later, it can no longer become the root.

Cure: call the whole model once before you call any of its blocks.

Next time: read the block's name in the message (`0` here). Then search for the code
that calls this block before the training loop.

Links: https://github.com/pytorch/pytorch/pull/117881 (the root is the module whose forward runs first)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
for block in model:
    fully_shard(block)
fully_shard(model)
x = torch.ones(2, 4)

# %% broken
print("features:", model[0](x).shape)
print("output:", model(x).shape)

# %% fixed
print("output:", model(x).shape)
print("features:", model[0](x).shape)

# %% signs
# FSDP state has already been lazily initialized for
# FSDP requires running forward through the root module first
# _is_root`? should not have been set yet or should have been set to
