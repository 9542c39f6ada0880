"""Chapter 9 - Uneven shares: five ways to end an epoch together.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch9_uneven.py
"""

import job  # first, since importing torch takes seconds

from contextlib import nullcontext
from itertools import cycle, islice, zip_longest

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tasks import read_digits

WAYS = "cut", "repeat", "join", "join, divided by those present", "pad"


def batches_of(rank: int, files: int, batch_size: int) -> list[tuple]:
    """Return the batches of a rank, which has 2 r files more than rank 0."""
    x, y = read_digits(1797, "cpu")
    before = sum(files + 2 * r for r in range(rank))
    mine = torch.arange(24 * before, 24 * (before + files + 2 * rank))
    parts = mine.split(batch_size)  # the last one is smaller
    return [(x[i].double(), y[i]) for i in parts]  # (B, 64), (B,)


def agree_on(num: int, op: dist.ReduceOp, device) -> int:
    """Return the least, the most or the sum of all ranks' numbers."""
    every = torch.tensor(num, device=device)
    dist.all_reduce(every, op)
    return every.item()


def even_out(way: str, batches: list[tuple], device) -> list[tuple]:
    """Give all ranks the same number of batches, unless Join will do it."""
    least, most = (
        agree_on(len(batches), op, device)
        for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX)
    )
    if way == "cut":  # the surplus is dropped
        return batches[:least]
    if way == "repeat":  # the shortfall is repeated
        return list(islice(cycle(batches), most))
    if way == "pad":  # empty batches, which weigh nothing
        empty = [part[:0] for part in batches[0]]
        return batches + [empty] * (most - len(batches))
    return batches


def train(args, way: str, batches: list[tuple], device) -> torch.Tensor:
    """Train in one of the ways, or in one process; return the weights."""
    torch.manual_seed(args.seed)
    net = nn.Linear(64, 10).double().to(device)
    optimizer, ddp = torch.optim.SGD(net.parameters(), args.lr), net
    joined, world_size = nullcontext(), dist.get_world_size()
    if way != "alone":
        ddp = DDP(net)
    if "join" in way:
        joined = ddp.join(divide_by_initial_world_size=way == "join")
    with joined:
        for x, y in batches:
            weight = len(y)
            if way == "pad":  # the mean over all samples of this step
                total = agree_on(len(y), dist.ReduceOp.SUM, device)
                weight = total / world_size  # since DDP divides by W
            take_step(ddp, x.to(device), y.to(device), weight, optimizer)
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def take_step(net, x, y, weight: float, optimizer) -> None:
    """Take a step along the sum of the losses / weight."""
    loss = nn.functional.cross_entropy(net(x), y, reduction="sum")
    optimizer.zero_grad()
    (loss / weight).backward()
    optimizer.step()


def main(args, rank: int, world_size: int, device) -> None:
    """Compare the ways with one process that reads what all ranks read."""
    if 24 * world_size * (args.files + world_size - 1) > 1797:
        why = f"{args.files} files and more for each rank"
        job.refuse(f"{why}: there are 74")
    sizes = args.files, args.batch_size
    shares = [batches_of(r, *sizes) for r in range(world_size)]
    union = [  # what one process would read, step by step
        [torch.cat(parts) for parts in zip(*some, strict=True)]
        for some in (filter(None, step) for step in zip_longest(*shares))
    ]
    start = train(args, "alone", [], device)
    truth = train(args, "alone", union, device)
    for way in WAYS:
        batches = even_out(way, shares[rank], device)
        weights = train(args, way, batches, device)
        off = ((weights - truth).norm() / (truth - start).norm()).item()
        mine = sum(len(y) for _, y in batches)
        used = agree_on(mine, dist.ReduceOp.SUM, device)
        steps = agree_on(len(batches), dist.ReduceOp.MAX, device)
        if rank == 0:
            counts = f"{steps} steps, {used} samples"
            job.say(f"{way}: {counts}, weights off by {off:.3f}")


def parse_args(argv: list[str] | None = None):
    """Read the flags; refuse impossible values."""
    numbers = {"files": 3, "batch_size": 16, "seed": 0, "lr": 0.5}
    return job.Flags(__doc__, **numbers).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
