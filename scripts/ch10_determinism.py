"""Chapter 10 - The same bits: on any number of ranks, and what that costs.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch10_determinism.py
"""

import job  # first, since importing torch takes seconds

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ch7_collectives import LOG, halving
from ch10_sums import in_pairs
from tasks import read_digits


def settle() -> None:
    """Remove the randomness that one process can: kernels, memory, threads."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA's
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # choose no kernel by timing
    torch.set_num_threads(1)  # two would each add up a part


def lane_gradients(net: nn.Module, x, y, lanes: int) -> torch.Tensor:
    """Return a row for each lane: the gradient of its samples' sum."""
    rows = []
    for own, wanted in zip(x.chunk(lanes), y.chunk(lanes), strict=True):
        loss = F.cross_entropy(net(own), wanted, reduction="sum")
        grads = torch.autograd.grad(loss, [*net.parameters()])
        rows.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(rows)  # (lanes, n)


def train(args, device, lanes: int, add=None) -> torch.Tensor:
    """Return the weights after some steps; without add, of one process."""
    share = dist.get_rank(), dist.get_world_size()
    rank, world_size = share if add else (0, 1)
    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    x, y = read_digits(args.samples, device)
    weights = [*net.to(device).parameters()]
    draw = torch.Generator().manual_seed(args.seed)
    for step in range(args.steps):
        batch = torch.randint(len(x), (args.batch_size,), generator=draw)
        mine = batch.chunk(world_size)[rank]  # neighbors, as in a tree
        total = in_pairs(lane_gradients(net, x[mine], y[mine], lanes))  # (n,)
        if add:
            add(total)  # all_reduce, or halving: the tree goes on over ranks
        job.finite(total.sum(), f"step {step + 1}")
        parts = total.split([w.numel() for w in weights])
        for w, part in zip(weights, parts, strict=True):
            w.data -= args.lr / args.batch_size * part.view_as(w)
    return torch.cat([w.detach().flatten() for w in weights])


def parse_args(argv: list[str] | None = None):
    """Read the flags; lanes and batch are those of all ranks together."""
    numbers = {"lanes": 8, "batch_size": 64, "steps": 20, "seed": 0}
    parser = job.Flags(__doc__, **numbers, samples=1440, lr=0.5)
    args = parser.parse_args(argv)
    if args.lanes & (args.lanes - 1):
        job.refuse(f"--lanes {args.lanes}: must be a power of two")
    if args.batch_size % args.lanes:
        why = f"--batch-size {args.batch_size}: must be a multiple of"
        job.refuse(f"{why} --lanes, {args.lanes}")
    return args


def main(args, rank: int, world_size: int, device) -> None:
    """Train in three ways; compare the bits with those of one process."""
    if world_size & (world_size - 1) or world_size > args.lanes:
        why = f"{world_size} ranks: must be a power of two"
        job.refuse(f"{why}, and at most --lanes, {args.lanes}")
    settle()
    own = args.lanes // world_size
    ways = {  # passes in one process, and on each of the ranks
        "1 pass, all_reduce": (1, 1, dist.all_reduce),
        f"{own} lanes, all_reduce": (args.lanes, own, dist.all_reduce),
        f"{own} lanes, in a tree": (args.lanes, own, halving),
    }
    for name, (alone, passes, add) in ways.items():
        one = train(args, device, alone)
        LOG.clear()
        first = train(args, device, passes, add)
        sent = sum(size for what, _, size in LOG if what == "isend")
        again = torch.equal(first, train(args, device, passes, add))
        same, apart = torch.equal(first, one), (first - one).abs().max()
        bits = f"repeats: {again}, as one process: {same}"
        if rank == 0:
            job.say(f"{name}: {bits}, {apart:.0e} off")
    size, ring = first.nbytes * args.steps, 2 * (world_size - 1) / world_size
    if rank == 0:
        tree = f"the tree sends {sent / size:.4g} n a step"
        job.say(f"{tree}, a ring {ring:.4g} n")


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
