r"""FSDP parameters should be materialized from meta device.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_fsdp
signature: RuntimeError: FSDP parameters should be materialized from meta device before training

You see: `FSDP parameters should be materialized from meta device`, with a list of
names, at the first forward. With some models from other libraries, the message is
`Cannot copy out of meta tensor; no data!`

Cause: a model built on the meta device has shapes but no memory. This lets each rank
shard a model that wouldn't fit on it as a whole. Nothing has given the shards memory or
values yet.

Cure: after sharding, call `model.to_empty(device=...)` to give the shards memory. Then
give them values: load a checkpoint, or call `reset_parameters()` on each module. Don't
stop after `to_empty`, or the model trains with whatever was in memory, without any
error. `to_empty` empties buffers, too. If a buffer is in no checkpoint
(`persistent=False`, such as rotary tables), compute it again.

Next time: before the first forward, list the parameters for which `p.is_meta` is true.
They still have no memory.

Links: https://github.com/pytorch/pytorch/pull/120351 (the intended steps from the meta device)
https://github.com/pytorch/torchtitan/issues/1058 (the shorter message, with fully_shard on another library's model)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

with torch.device("meta"):
    model = fully_shard(nn.Linear(4, 1))

# %% broken
print(model(torch.ones(2, 4)).shape)

# %% fixed
model.to_empty(device="cpu")
model.reset_parameters()
print(model(torch.ones(2, 4)).shape)

# %% signs
# FSDP parameters should be materialized from meta device
# maybe: Cannot copy out of meta tensor; no data
# Must flatten tensors on the same device but got both .*\bmeta\b
