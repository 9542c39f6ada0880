r"""FSDP state has already been lazily initialized: a block ran first.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_fsdp
signature: RuntimeError: FSDP state has already been lazily initialized for 0

You see: `FSDP state has already been lazily initialized for 0`, with the hint that the
root must run first, in a forward that worked before sharding.

Cause: the first forward decides which unit is the root: it is the one that runs first.
So a warm-up, a shape check or feature extraction that calls a block turns that block
into a root of its own, and when the model runs, it is too late.

Cure: call the whole model first, before any of its blocks.

Next time: the message names the block (`0` here). Search for what calls it before the
training loop.

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
