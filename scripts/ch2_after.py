"""Chapter 2 - After: the same training on DistributedDataParallel.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch2_after.py
"""

import job  # first, since importing torch takes seconds

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import checkpoint
from tasks import make_task


def train(args, device: torch.device) -> list[torch.Tensor]:
    """Train on this rank's share of the data; return the loss at each step."""
    torch.manual_seed(args.seed)
    train_set, test_set, net = make_task(args.samples)
    model = nn.parallel.DistributedDataParallel(net.to(device))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, 0.9)
    sampler = DistributedSampler(train_set, seed=args.seed)
    batch_size, rest = divmod(args.batch_size, num := dist.get_world_size())
    if rest:
        why = f"{num} ranks cannot share it"
        job.refuse(f"--batch-size {args.batch_size}: {why}")
    loader = DataLoader(train_set, batch_size, sampler=sampler)
    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:  # (B / W, 1, 8, 8), (B / W,): this rank's share
            output = model(x.to(device))
            loss = nn.functional.cross_entropy(output, y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        loss = torch.stack(losses[-len(loader) :]).mean()
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        job.finite(loss, f"{epoch=}")
        if dist.get_rank() > 0:
            continue
        x, y = test_set[:]
        with torch.no_grad():
            hits = model.module(x.to(device)).argmax(dim=1) == y.to(device)
        accuracy = hits.double().mean()
        job.say(f"{epoch=} {loss=:.4f} {accuracy=:.4f}")
        checkpoint.save(args.checkpoint, model.module.state_dict())
    return losses


def parse_args(argv: list[str] | None = None):
    """Read the flags; refuse impossible values."""
    numbers = {"epochs": 2, "batch_size": 48, "samples": 1440, "seed": 0}
    parser = job.Flags(__doc__, **numbers, lr=0.05)
    checkpoint.add_flags(parser, "ch2_ddp.pt")
    return checkpoint.keep(parser.parse_args(argv))


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as (_, _, device):
        train(args, device)
