"""Chapter 10 - Clip gradients by the norm of all shards, once it is complete.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch10_clip.py
"""

import job  # first, since importing torch takes seconds

from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import parallel as tp
from torch.nn.functional import mse_loss

from ch10_accumulate import in_a_row, off


def clip(net: nn.Module, most: float) -> torch.Tensor:
    """Clip by torch's own norm, which knows of shards; return the norm."""
    norm = nn.utils.clip_grad_norm_(net.parameters(), most)
    return norm.full_tensor() if hasattr(norm, "to_local") else norm


def clip_shards(net: nn.Module, most: float, add: bool) -> torch.Tensor:
    """Clip by the norm of what this rank has, or of what all ranks have."""
    shards = [p.grad.to_local() for p in net.parameters()]
    total = sum(g.square().sum() for g in shards)
    if add:
        dist.all_reduce(total)  # but who counts what all ranks have?
    share = most / (total.sqrt() + 1e-6)  # as torch does, NaN included
    for g in shards:
        g.mul_(share.clamp(max=1.0))  # min(1, nan) is 1 in Python
    return total.sqrt()


def ddp(net, x, y, most, parts: int = 1, early=False, unscale=None):
    """Train in k parts, perhaps with a loss scale; clip late, or early."""
    model = nn.parallel.DistributedDataParallel(net)
    optimizer, on = torch.optim.SGD(net.parameters()), unscale is not None
    scaler = torch.amp.GradScaler(x.device.type, 2.0**12, enabled=on)
    pieces = zip(x.chunk(parts), y.chunk(parts), strict=True)
    for place, piece in enumerate(pieces):
        with nullcontext() if place == parts - 1 else model.no_sync():
            loss = mse_loss(model(piece[0]), piece[1]) / parts
            scaler.scale(loss).backward()
        if early and place < parts - 1:
            clip(net, most)  # these are still this rank's own
    if unscale:
        scaler.unscale_(optimizer)
    norm = clip(net, most)
    if not unscale:
        scaler.unscale_(optimizer)  # as scaler.step() would
    return norm


def before(net, x, y, most):
    """Clip on each rank, then average: each is cut by a norm of its own."""
    mse_loss(net(x), y).backward()
    norm = clip(net, most)
    for p in net.parameters():
        dist.all_reduce(p.grad, dist.ReduceOp.AVG)
    return norm


def sharded(net, x, y, most, ours, plan=None):
    """Shard all parameters with FSDP2 or, by a plan, cut the layers for TP."""
    mesh = init_device_mesh(x.device.type, (dist.get_world_size(),))
    if plan:
        tp.parallelize_module(net, mesh, plan)
    else:
        fully_shard(net, mesh=mesh)
    mse_loss(net(x), y).backward()
    return ours(net, most)


def make_tanh(device) -> nn.Module:
    """Return a small net in float64, the same on all ranks."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
    return net.double().to(device)


def make_hard(num: int, seed: int, device) -> tuple[torch.Tensor, ...]:
    """Return inputs and targets; later samples are harder than early ones."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 8, generator=draw, dtype=torch.double)  # (N, 8)
    y = x[:, :4] * torch.linspace(1, 9, num, dtype=torch.double)[:, None]
    return x.to(device), y.to(device)


def parse_args(argv: list[str] | None = None):
    """Read the flags; --most is the norm to clip to."""
    return job.Flags(__doc__, samples=64, seed=0, most=1.0).parse_args(argv)


def main(args, rank: int, world_size: int, device) -> None:
    """Clip in eleven ways; compare with one process that has all samples."""
    if args.samples % (4 * world_size):
        why = f"--samples {args.samples}: must be 4 x ranks, or a multiple"
        job.refuse(why)
    x, y = make_hard(args.samples, args.seed, device)
    mse_loss((alone := make_tanh(device))(x), y).backward()
    clip(alone, args.most)
    own, added = (partial(clip_shards, add=add) for add in (False, True))
    plan = {"0": tp.ColwiseParallel(), "2": tp.RowwiseParallel()}
    tries = {
        "DDP, before the average": before,
        "DDP, after it": ddp,
        "DDP, after each of 4 parts": partial(ddp, parts=4, early=True),
        "DDP, after the last part": partial(ddp, parts=4),
        "DDP, still scaled": partial(ddp, unscale=False),
        "DDP, unscaled first": partial(ddp, unscale=True),
        "FSDP2, norm of the shard": partial(sharded, ours=own),
        "FSDP2, shards added up": partial(sharded, ours=added),
        "FSDP2, clip_grad_norm_": partial(sharded, ours=clip),
        "TP, shards added up": partial(sharded, ours=added, plan=plan),
        "TP, clip_grad_norm_": partial(sharded, ours=clip, plan=plan),
    }
    for name, run in tries.items():  # under TP, all ranks see all samples
        mine = slice(None) if name[0] == "T" else slice(rank, None, world_size)
        net = make_tanh(device)
        norm = run(net, x[mine], y[mine], args.most)
        wrong = off(in_a_row(net), in_a_row(alone))
        if rank == 0:
            job.say(f"{name:27} norm {norm:9.4f}, {wrong:.0e} off")


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
