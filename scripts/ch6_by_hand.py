"""Chapter 6 - By hand: a stage on each rank, micro-batches by send and recv.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch6_by_hand.py
"""

import job  # first, since importing torch takes seconds

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from tasks import make_task


def train_step(stage, shape, x, y, num: int) -> torch.Tensor:
    """Run all micro-batches forward, then back; return the loss, if last."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    held = []  # what each micro-batch keeps until its backward pass
    for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
        if rank > 0:  # the output of the stage before, not the images
            piece = torch.empty(len(piece), *shape, device=x.device)
            dist.recv(piece, rank - 1)
            piece.requires_grad_()
        output = stage(piece)
        if rank < last:
            dist.send(output.detach(), rank + 1)
        else:
            loss = nn.functional.cross_entropy(output, target)
            output = loss * len(piece) / len(x)  # its share of the mean
        held.append((piece, output))
    for piece, output in held:
        gradient = None  # a loss needs none from outside
        if rank < last:
            gradient = torch.empty_like(output)
            dist.recv(gradient, rank + 1)
        output.backward(gradient)
        if rank > 0:
            dist.send(piece.grad, rank - 1)
    return sum(output.detach() for _, output in held if rank == last)


def train(args, rank: int, world_size: int, device) -> list[torch.Tensor]:
    """Train this rank's stage; return the loss at each step, if it is last."""
    torch.manual_seed(args.seed)  # all make the same net; each keeps its part
    train_set, _, net = make_task(args.samples)
    if world_size > len(net):
        job.refuse(f"{world_size} ranks > {len(net)} layers")
    start, end = (len(net) * r // world_size for r in (rank, rank + 1))
    shape = net[:start](train_set[:1][0]).shape[1:]  # of what comes in
    stage = net[start:end].to(device)
    job.say(f"layers {start} to {end - 1}; takes samples of {tuple(shape)}")
    group = {"params": list(stage.parameters())}  # a pooling layer has none
    optimizer = torch.optim.SGD([group], args.lr, 0.9)
    dice, losses = torch.Generator(), []
    sampler = RandomSampler(train_set, generator=dice)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    for epoch in range(args.epochs):
        dice.manual_seed(args.seed + epoch)  # the same order on all ranks
        for x, y in loader:  # (B, 1, 8, 8), (B,)
            optimizer.zero_grad()
            x, y = x.to(device), y.to(device)
            loss = train_step(stage, shape, x, y, args.microbatches)
            losses.append(torch.as_tensor(loss))
            optimizer.step()
        loss = torch.stack(losses[-len(loader) :]).to(device).double().mean()
        dist.broadcast(loss, world_size - 1)  # only the last rank knows it
        job.finite(loss, f"{epoch=}")
        if rank == world_size - 1:
            job.say(f"{epoch=} {loss=:.4f}")
    return losses


def parse_args(argv: list[str] | None = None):
    """Read the flags; --batch-size is cut into --microbatches."""
    numbers = {"epochs": 3, "batch_size": 192, "samples": 1440}
    numbers |= {"microbatches": 4, "seed": 0, "lr": 0.05}
    return job.Flags(__doc__, **numbers).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        train(args, *place)
