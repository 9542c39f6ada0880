r"""The ranks of a tensor-parallel group read different batches.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch6_model_parallel
signature: output \S+ instead of
guard: one tensor-parallel model take different shares

You see: the loss falls, but stops at a higher level than it should. All ranks of the
group print the same outputs, which looks right.

Cause: under tensor parallelism each rank computes a part of every sample's features,
and an `all_reduce` adds the parts up. If the ranks hold different samples, parts of
different samples are added.

Cure: number the data by the mesh's data axis only. All ranks of a tensor axis have the
same coordinate there and read the same batch.

Next time: all_gather a checksum of the batch within the tensor-parallel group.

Links: https://github.com/huggingface/accelerate/issues/3092 (ranks of one data coordinate got different data)
https://github.com/NVIDIA/Megatron-LM/issues/1125 (why the batch is broadcast within the tensor group)
"""

# %% given
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DistributedSampler

samples = torch.tensor([[1.0, 2.0], [-3.0, 1.0], [2.0, -1.0], [0.0, 4.0]])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
state = {name: value.clone() for name, value in model.state_dict().items()}
mesh = init_device_mesh("cpu", (1, world_size), mesh_dim_names=("data", "tensor"))
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
model = parallelize_module(model, mesh["tensor"], plan)

# %% broken
where = world_size, rank
sampler = DistributedSampler(samples, *where, shuffle=False)
x = samples[next(iter(sampler))]
output = model(x)
print(f"output {output.item():.3f}")

# %% fixed
where = mesh["data"].size(), mesh["data"].get_local_rank()
sampler = DistributedSampler(samples, *where, shuffle=False)
x = samples[next(iter(sampler))]
output = model(x)
print(f"output {output.item():.3f}")

# %% invariant: the output is that of the undivided model for the own sample
alone = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
alone.load_state_dict(state)
got, want = output.item(), alone(x).item()
assert abs(got - want) < 1e-4, f"output {got:.3f} instead of {want:.3f}"

# %% guarded
from torch.utils.data import DataLoader

from allranks.guard import Guard

where = world_size, rank
sampler = DistributedSampler(samples, *where, shuffle=False)
watch = Guard(model)
for x in watch.epoch(DataLoader(samples, sampler=sampler), 0):
    output = model(x)
    watch.step()
