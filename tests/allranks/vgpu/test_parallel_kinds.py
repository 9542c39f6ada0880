"""One source on CPU ranks and on ranks with GPUs: each kind of parallelism agrees."""

import pytest

from allranks import Ranks

SETUP = """
import warnings
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

warnings.simplefilter("ignore")
kind = device.type
if kind == "cuda":
    torch.cuda.set_device(device)

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)

def batch(seed):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)).to(device)
"""
KINDS = {
    "HSDP": """
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh(kind, (2, world_size // 2), mesh_dim_names=("copies", "shards"))
net = network()
fully_shard(net, mesh=mesh)
net(batch(rank)).square().mean().backward()
[p.grad.full_tensor().cpu() for p in net.parameters()]
""",
    "FSDP with tensor parallelism": """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

mesh = init_device_mesh(kind, (2, world_size // 2), mesh_dim_names=("data", "model"))
net = network()
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
parallelize_module(net, mesh["model"], plan)
fully_shard(net, mesh=mesh["data"])
norm = None
optimizer = torch.optim.AdamW(net.parameters(), 0.01)
for step in range(2):
    optimizer.zero_grad()
    net(batch(mesh["data"].get_local_rank())).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1).full_tensor()
    optimizer.step()
[norm.cpu(), *[p.full_tensor().detach().cpu() for p in net.parameters()]]
""",
    "ZeRO": """
from torch.distributed.optim import ZeroRedundancyOptimizer

net = network()
ddp = nn.parallel.DistributedDataParallel(net)
optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
for step in range(2):
    optimizer.zero_grad()
    ddp(batch(10 * step + rank)).square().mean().backward()
    optimizer.step()
optimizer.consolidate_state_dict(0)
del ddp
[p.detach().cpu() for p in net.parameters()]
""",
    "a pipeline": """
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

torch.manual_seed(rank)
parts = [nn.Linear(8, 8).to(device) for _ in range(2)]
stages = [
    PipelineStage(part, rank + place * world_size, 2 * world_size, device)
    for place, part in enumerate(parts)
]
loss = lambda out, target: (out - target).square().mean()
schedule = ScheduleInterleaved1F1B(stages, world_size, loss_fn=loss)
first = (batch(0),) if rank == 0 else ()
last = {"target": batch(1)} if rank == world_size - 1 else {}
schedule.step(*first, **last)
[p.grad.cpu() for part in parts for p in part.parameters()]
""",
    "a parallel loss": """
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    loss_parallel,
    parallelize_module,
)

mesh = init_device_mesh(kind, (world_size,))
net = network()
plan = {"2": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
parallelize_module(net, mesh, plan)
with loss_parallel():
    loss = nn.functional.cross_entropy(net(batch(0)), torch.arange(4, device=device))
    loss.backward()
[loss.full_tensor().detach().cpu(), net[2].weight.grad.full_tensor().cpu()]
""",
    "tensor parallelism in 16 bits": """
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

mesh = init_device_mesh(kind, (world_size,))
net = network()
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
parallelize_module(net, mesh, plan)
with torch.autocast(kind, torch.bfloat16):
    out = net(batch(0))
assert out.dtype == torch.bfloat16, out.dtype
out.float().square().mean().backward()
grads = [p.grad.full_tensor() for p in net.parameters()]
net.bfloat16()
with torch.autocast(kind, torch.bfloat16):
    again = net(batch(0))  # weights of 16 bits, an input of 32
assert again.dtype == torch.bfloat16, again.dtype
[out.detach().float().cpu(), again.detach().float().cpu(), *[g.cpu() for g in grads]]
""",
    "a checkpoint": """
import shutil, tempfile
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
net = network()
fully_shard(net)
optimizer = torch.optim.AdamW(net.parameters(), 0.01)
net(batch(rank)).square().mean().backward()
optimizer.step()
saved = dict(zip(("net", "optimizer"), get_state_dict(net, optimizer), strict=True))
dcp.save(saved, checkpoint_id=folder[0])
other = network()
fully_shard(other)
again = torch.optim.AdamW(other.parameters(), 0.01)
names = "net", "optimizer"
loaded = dict(zip(names, get_state_dict(other, again), strict=True))
dcp.load(loaded, checkpoint_id=folder[0])
set_state_dict(other, again, model_state_dict=loaded["net"],
               optim_state_dict=loaded["optimizer"])
dist.barrier(device_ids=[rank] if kind == "cuda" else None)
if rank == 0:
    shutil.rmtree(folder[0])
[p.full_tensor().detach().cpu() for p in other.parameters()]
""",
    "joined ranks with uneven data": """
from torch.distributed.algorithms.join import Join

net = network()
ddp = nn.parallel.DistributedDataParallel(net)
with Join([ddp]):
    for step in range(1 + rank):
        ddp(batch(10 * step + rank)).square().mean().backward()
del ddp
[p.grad.cpu() for p in net.parameters()]
""",
    "collectives in a graph": """
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as in_graph

x = batch(rank).requires_grad_()
world = dist.group.WORLD
total = in_graph.all_reduce(x * (rank + 1))
whole = functional.all_gather_tensor_autograd(x, 0, world)
part = functional.reduce_scatter_tensor_autograd(whole * x[0, 0], "sum", 0, world)
(total.square().sum() + part.square().sum()).backward()
[total.detach().cpu(), part.detach().cpu(), x.grad.cpu()]
""",
}


@pytest.fixture(scope="module")
def both():
    """Yield four ranks on the CPU, and four with GPUs."""
    with Ranks(4) as on_cpu, Ranks(4, gpus=True) as on_gpus:
        for ranks in on_cpu, on_gpus:
            ranks.run(SETUP)
        yield on_cpu, on_gpus


@pytest.mark.parametrize("name", KINDS)
def test_gpus_compute_what_cpus_do(both, name):
    """Weights and gradients are equal to the last bit."""
    theirs, ours = (ranks.run(KINDS[name], quiet=True) for ranks in both)
    for one, other in zip(ours, theirs, strict=True):
        assert len(one) == len(other) > 0
        assert all(a.equal(b) for a, b in zip(one, other, strict=True))
