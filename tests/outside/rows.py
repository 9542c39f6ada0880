"""What the tests of chapter 12.2's tables share: a net, one process, and two ranks."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

DIM, STEPS, LR = 12, 3, 0.5
BOUND = 1e-6  # rounding in float32: the weights are below 1
Weights = dict[str, torch.Tensor]


def build(seed: int = 0) -> nn.Sequential:
    """Return three layers."""
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(DIM, DIM) for _ in range(3)))


def optimize(net: nn.Module) -> torch.optim.Optimizer:
    """Return SGD: AdamW would hide a sum in place of a mean."""
    return torch.optim.SGD(net.parameters(), LR, momentum=0.9)


def batches(num: int, world_size: int = 2) -> torch.Tensor:
    """Return what to train on: (steps, num, W, B, DIM)."""
    dice = torch.Generator().manual_seed(1)
    return torch.randn(STEPS, num, world_size, 5, DIM, generator=dice)


def alone(num: int = 1, world_size: int = 2, clip=0.0, loud=1.0) -> Weights:
    """Train in one process; return the weights."""
    net = build()
    optimizer = optimize(net)
    for parts in batches(num, world_size):
        for part in parts:
            (loud * net(part.flatten(0, 1)).square().mean() / num).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return net.state_dict()


def fsdp2(rank: int, reshard: bool | int) -> tuple[Weights, list]:
    """Train with FSDP2; return weights, and a part's share before and after forward."""
    net = build()
    for module in [*net, net]:
        fully_shard(module, reshard_after_forward=reshard)
    optimizer, shares = optimize(net), []
    for part in batches(1, dist.get_world_size())[:, 0, rank]:
        optimizer.zero_grad()
        shares = [share(net[1].weight)]
        loss = net(part).square().mean()
        shares.append(share(net[1].weight))
        loss.backward()
        optimizer.step()
    params = net.named_parameters()
    return {name: p.full_tensor().detach() for name, p in params}, shares


def share(weight: torch.Tensor) -> float:
    """Return which share of a matrix this rank has."""
    part = weight.to_local() if hasattr(weight, "to_local") else weight
    return part.numel() / DIM**2


def off(weights: Weights, wanted: Weights) -> float:
    """Return the largest difference."""
    assert weights.keys() == wanted.keys()
    return max(float((weights[n].float() - wanted[n]).abs().max()) for n in wanted)


def near(weights: Weights, **how) -> str:
    """Say how far weights are off one process's, which is no more than rounding."""
    gap = off(weights, alone(**how))
    assert gap < BOUND
    return f"weights off by {gap:.0e} from one process"


def on_rank(rank: int, world_size: int, folder: Path, fn: Callable, args: tuple):
    """Be a rank: run a function in the group, and leave what it returns in a file."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": 29500}
    place |= {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    place |= {"LOCAL_SIZE": world_size, "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {name: str(value) for name, value in place.items()}
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, rank=rank, world_size=world_size)
    torch.save(fn(rank, *args), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(folder: Path, fn: Callable, *args: object, world_size: int = 2) -> list:
    """Run a function on ranks that are forked from here; return what each returns."""
    folder.mkdir(exist_ok=True)
    (folder / "store").unlink(missing_ok=True)
    how = world_size, folder, fn, args
    torch.multiprocessing.start_processes(on_rank, how, world_size, start_method="fork")
    ranks = range(world_size)
    return [torch.load(folder / f"{r}.pt", weights_only=False) for r in ranks]
