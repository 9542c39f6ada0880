r"""Plan key could not be resolved: nothing is sharded.

class: TP/FSDP2
symptom: silent
runs on: 2 ranks
chapter: ch6_model_parallel
signature: AssertionError: 0 of 4 parameters are sharded
beyond: The result is right. A layer that no rank shards only costs memory, and torch warns about it.

You see: a warning that a plan key `could not be resolved` (older versions print
nothing). The results are right, but the memory per GPU does not fall, because each rank
computes everything.

Cause: a plan is a dict of module names, and a name that matches nothing is skipped. If
a wrapper (`torch.compile`, a checkpoint wrapper) renamed a layer, its old name matches
nothing, either.

Cure: take the names from `model.named_modules()`. In a key, `*` stands for one part of
a name. Then check that the parameters of the layers that you meant are DTensors.

Next time: count the DTensors among `model.parameters()` right after
`parallelize_module`.

Links: https://github.com/pytorch/pytorch/pull/157182 (a plan entry without a module: a warning, then ignored)
"""

# %% given
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

mesh = init_device_mesh("cpu", (world_size,))
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

# %% broken
plan = {"layers.0": ColwiseParallel(), "layers.1": RowwiseParallel()}
parallelize_module(model, mesh, plan)
print(model(torch.ones(2, 4)).shape)

# %% fixed
plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
parallelize_module(model, mesh, plan)
print(model(torch.ones(2, 4)).shape)

# %% invariant: every parameter is a DTensor
sharded = [isinstance(p, DTensor) for p in model.parameters()]
assert all(sharded), f"{sum(sharded)} of {len(sharded)} parameters are sharded"

# %% signs
# Parallelize plan key '[^']*' could not be resolved
