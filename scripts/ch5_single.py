"""Chapter 5 - One process: the training that DDP will share out.

Run it (no GPU needed):
    python scripts/ch5_single.py
"""

import job  # first, since importing torch takes seconds

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from tasks import make_task


def train(args, device) -> list[torch.Tensor]:
    """Train on all samples; return the loss at each step."""
    torch.manual_seed(args.seed)
    train_set, test_set, net = make_task(args.samples)
    num = len(train_set)
    optimizer = torch.optim.SGD(net.to(device).parameters(), args.lr, 0.9)
    dice = torch.Generator()
    sampler = RandomSampler(train_set, generator=dice)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    losses = []
    for epoch in range(args.epochs):
        dice.manual_seed(args.seed + epoch)  # a new order
        start = time.perf_counter()
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        loss = torch.stack(losses[-len(loader) :]).mean()
        job.finite(loss, f"{epoch=}")
        rate = num / (time.perf_counter() - start)
        x, y = test_set[:]
        with torch.no_grad():
            hits = net(x.to(device)).argmax(dim=1) == y.to(device)
        accuracy = (hits.sum() / len(hits)).item()
        job.put(f"{epoch=} {loss=:.4f} {accuracy=:.4f} {rate:.0f} samples/s")
    return losses


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    numbers = {"epochs": 8, "batch_size": 192, "samples": 1440, "seed": 0}
    return job.Flags(__doc__, **numbers, lr=0.05).parse_args(argv)


if __name__ == "__main__":
    gpu = torch.accelerator.current_accelerator(check_available=True)
    train(parse_args(), gpu or torch.device("cpu"))
