r"""Composable distributed API can only be applied once: sharded twice.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_fsdp
signature: AssertionError: Each distinct composable distributed API can only be applied to a module once

You see: `Each distinct composable distributed API can only be applied to a module
once`, often in a notebook, when you run a cell again.

Cause: `fully_shard` works in place: it changes the module's class and cuts its
parameters. There is no wrapper that you could throw away, so there is no way back. If
your loop reaches a shared layer twice, it shards it twice.

Cure: build the model in the same cell, or function, that shards it. If layers are
shared, keep a set of the layers that you have sharded, and skip them.

Next time: read the module's class name in the message. If it begins with `FSDP`, the
module was sharded already.

Links: https://github.com/pytorch/pytorch/pull/118525 (fully_shard changes the module's class in place)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

model = fully_shard(nn.Linear(4, 1))  # the cell's first run

# %% broken
model = fully_shard(model)
print(type(model).__name__, model(torch.ones(2, 4)).shape)

# %% fixed
model = fully_shard(nn.Linear(4, 1))
print(type(model).__name__, model(torch.ones(2, 4)).shape)

# %% signs
# Each distinct composable distributed API can only be applied
# requires modules to not already have FSDP applied
