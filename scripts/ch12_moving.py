"""Chapter 12 - Sharding: FSDP1 and ZeroRedundancyOptimizer beside FSDP2.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch12_moving.py
"""

import job  # first, since importing torch takes seconds

import warnings
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer

from ch12_replicas import off
from meter import Meter

DIM, NORM = 12, 0.1  # a layer's width; gradients are clipped to this norm
sgd, clip = partial(torch.optim.SGD, lr=0.5), nn.utils.clip_grad_norm_


def alone(net: nn.Module, device) -> tuple:
    """Return the net, an optimizer, a clip function, and a no_sync."""
    return net, sgd(net.parameters()), clip, nullcontext


def ddp(net: nn.Module, device, make=sgd) -> tuple:
    """Wrap the net with DDP, and make an optimizer."""
    ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1e-6)
    return ddp, make(ddp.parameters()), clip, ddp.no_sync


def old(net: nn.Module, device, strategy: str, **how) -> tuple:
    """Wrap the net and its layers with FSDP1."""
    how["sharding_strategy"] = fsdp.ShardingStrategy[strategy]
    how["auto_wrap_policy"] = ModuleWrapPolicy({nn.Linear})  # else one unit
    how["device_id"] = device  # else FSDP1 refuses a CPU
    how["use_orig_params"] = True  # else each unit has one flat parameter
    net = fsdp.FullyShardedDataParallel(net, **how)
    own = lambda _, norm: net.clip_grad_norm_(norm)  # noqa: E731
    return net, sgd(net.parameters()), own, net.no_sync


def new(net: nn.Module, device, **how) -> tuple:
    """Shard the net's layers and the net with FSDP2."""
    for module in [*net, net]:
        fsdp.fully_shard(module, **how)

    @contextmanager
    def no_sync():
        net.set_requires_gradient_sync(False)
        yield
        net.set_requires_gradient_sync(True)

    return net, sgd(net.parameters()), clip, no_sync


def train(make, num, args, rank: int, world_size: int, device) -> tuple:
    """Train a net in steps of num parts; return weights, and bytes sent."""
    torch.manual_seed(args.seed)
    net = nn.Sequential(*(nn.Linear(DIM, DIM) for _ in range(3)))
    net, optimizer, clip, no_sync = make(net.to(device), device)
    dice = torch.Generator().manual_seed(args.seed)
    shape = args.steps, num, world_size, 5, DIM
    for parts in torch.randn(shape, generator=dice).to(device):
        with Meter(net, optimizer) as meter:
            for left, part in enumerate(parts, 1 - num):
                mine = part.flatten(0, 1) if make is alone else part[rank]
                with no_sync() if left else nullcontext():
                    (net(mine).square().mean() / num).backward()
        clip(net.parameters(), NORM)
        with meter:
            optimizer.step()
        optimizer.zero_grad()
    return weights(net), meter.sent


def weights(net: nn.Module) -> dict[str, torch.Tensor]:
    """Return whole weights, under the names of the unwrapped net."""
    how = state_dict.StateDictOptions(full_state_dict=True)
    return state_dict.get_model_state_dict(net, options=how)


def rows(world_size: int, device) -> dict:
    """Return by name: the old way, FSDP2's, and the parts of a step."""
    full, grads, none = (
        partial(old, strategy=name)
        for name in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
    )
    kept = partial(new, reshard_after_forward=False)
    how = {"optimizer_class": torch.optim.SGD, "lr": 0.5}
    shared = partial(ddp, make=partial(ZeroRedundancyOptimizer, **how))
    found = {"NO_SHARD": (none, ddp, 1), "FULL_SHARD": (full, new, 1)}
    found["SHARD_GRAD_OP"] = grads, kept, 1
    found["ZeroRedundancyOptimizer"] = shared, kept, 1
    if world_size >= 4 and world_size % 2 == 0:
        shape, names = (2, world_size // 2), ("replicas", "shards")
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
        hybrid = partial(old, strategy="HYBRID_SHARD", device_mesh=mesh)
        found["HYBRID_SHARD"] = hybrid, partial(new, mesh=mesh), 1
    found["FULL_SHARD, 2 batches"] = full, new, 2
    found["SHARD_GRAD_OP, 2 batches"] = grads, kept, 2
    return found


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, steps=3, seed=0).parse_args(argv)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    with job.ranks(args := parse_args()) as place:
        for name, (*ways, num) in rows(*place[1:]).items():
            one, _ = train(alone, num, args, *place)
            found = [train(way, num, args, *place) for way in ways]
            said = [f"{off(w, one):.0e} off, sends {n:.0f}" for w, n in found]
            if place[0] == 0:
                job.say(f"{name:24} {said[0]} B; now {said[1]} B")
