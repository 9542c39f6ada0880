r"""Composable distributed API can only be applied once: sharded twice.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_fsdp
signature: AssertionError: Each distinct composable distributed API can only be applied to a module once

You see: `Each distinct composable distributed API can only be applied to a module
once`. Often in a notebook, when a cell is run again.

Cause: `fully_shard` works in place: it changes the module's class and cuts its
parameters. There is no wrapper to throw away, so there is no way back. A layer that is
used in two places is also met twice.

Cure: build the model in the same cell, or function, that shards it. For shared layers
keep a set of those that are already sharded.

Next time: the message prints the module: `FSDP…` before its class name says that it had
been sharded already.

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
