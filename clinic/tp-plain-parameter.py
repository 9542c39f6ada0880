r"""The size of tensor a must match: a parameter was not sharded.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: RuntimeError: The size of tensor a \(2\) must match the size of tensor b \(4\)

You see: `The size of tensor a … must match the size of tensor b`, and the two sizes
differ by a factor of W, the number of ranks.

Cause: between `ColwiseParallel` and `RowwiseParallel`, each rank has only a part of the
features. A separate scale, norm or bias that sits there is not in the plan, so it still
covers all features.

Cure: shard this parameter along the features, too. And pass `use_local_output=False` to
`ColwiseParallel`, as in the fix below. The activations then stay DTensors, and torch
works out the shapes.

Next time: print name, type and shape of all parameters after `parallelize_module`. A
parameter that is not a DTensor must sit where the activations are whole.

Links: https://github.com/ModelTC/LightX2V/pull/1453 (a whole bias beside a sharded weight)
"""

# %% given
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


class Scale(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * self.factor


mesh = init_device_mesh("cpu", (world_size,))
model = nn.Sequential(nn.Linear(4, 4), Scale(4), nn.Linear(4, 4))

# %% broken
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
parallelize_module(model, mesh, plan)
print(model(torch.ones(2, 4)).shape)

# %% fixed
plan = {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()}
parallelize_module(model, mesh, plan)
part = distribute_tensor(model[1].factor, mesh, [Shard(0)])
model[1].factor = nn.Parameter(part)
print(model(torch.ones(2, 4)).shape)

# %% signs
# maybe: The size of tensor a \(\d+\) must match the size of tensor b \(\d+\) at non-singleton
# with: parallelize_module|[Tt]ensor[ _]?[Pp]arallel|wiseParallel|(?:Column|Row)ParallelLinear
# with: distributed[./]_?tensor|DTensor|\[TP\] RuntimeError|tp_mesh
# with: tp_size|tp_plan|device_mesh|DeviceMesh|ParallelStyle|SequenceParallel
