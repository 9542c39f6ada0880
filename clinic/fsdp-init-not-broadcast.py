r"""FSDP2 shards weights that the ranks initialized with different seeds.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch12_fsdp
signature: \d of \d rows differ
guard: parameter weight is not the same on all ranks

You see: nothing. The initial weights are a patchwork: each rank's part comes from its
own random numbers. If each rank had loaded a different checkpoint, the model would be a
patchwork of those.

Cause: `fully_shard` keeps the rank's own shard of the rank's own parameter and sends
nothing. DDP broadcasts from rank 0 when it is built, and FSDP1 could
(`sync_module_states`), so code that comes from there relies on it.

Cure: initialise with the same seed on all ranks, broadcast before sharding, or load
with `set_model_state_dict(..., StateDictOptions(full_state_dict=True,
broadcast_from_rank0=True))`.

Next time: before sharding, compare a checksum of the parameters on all ranks.

Links: https://github.com/pytorch/torchtitan/issues/1777 (request: broadcast in FSDP2, as DDP and FSDP1 do)
https://github.com/pytorch/torchtitan/issues/670 (no flag: users synchronize by hand)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.manual_seed(rank)
model = nn.Linear(1, 4, bias=False)

# %% broken
fully_shard(model)
print("sharded:", tuple(model.weight.shape), "over", world_size, "ranks")

# %% fixed
for parameter in model.parameters():
    dist.broadcast(parameter.detach(), src=0)
fully_shard(model)
print("sharded:", tuple(model.weight.shape), "over", world_size, "ranks")

# %% invariant: the sharded model starts from the weights that rank 0 drew
whole = model.weight.full_tensor()
torch.manual_seed(0)
rows = (whole != nn.Linear(1, 4, bias=False).weight).any(1).sum().item()
assert not rows, f"{rows} of {len(whole)} rows differ from rank 0's"

# %% guarded
from allranks.guard import Guard

Guard(model).remove()  # while every rank still holds the whole
fully_shard(model)
