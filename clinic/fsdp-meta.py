r"""FSDP parameters should be materialized from meta device.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_fsdp
signature: RuntimeError: FSDP parameters should be materialized from meta device before training

You see: `FSDP parameters should be materialized from meta device`, with a list of
names, at the first forward. From other code: `Cannot copy out of meta tensor; no data!`

Cause: a model built on the meta device has shapes but no memory, which lets each rank
shard a model that would not fit. Since then nothing has given the shards memory and
values.

Cure: after sharding, `model.to_empty(device=...)` for memory, and then values: load a
checkpoint or call `reset_parameters()` of each module. `to_empty` alone leaves whatever
was in memory, without any error. It empties buffers too: those that no checkpoint holds
(`persistent=False`, such as rotary tables) have to be computed again.

Next time: check `p.is_meta` after loading; the names that remain were in no checkpoint.

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
