"""Chapter 2 - Before: a training script as it stands in many old repositories.

Run it (no GPU needed):
    python scripts/ch2_before.py
"""

import job  # first, since importing torch takes seconds

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

import checkpoint
from tasks import make_task


def train(args, device: torch.device) -> list[torch.Tensor]:
    """Train on every GPU of this machine; return the loss at each step."""
    torch.manual_seed(args.seed)
    train_set, test_set, net = make_task(args.samples)
    model = nn.DataParallel(net.to(device))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, 0.9)
    generator = torch.Generator()
    sampler = RandomSampler(train_set, generator=generator)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    losses = []
    for epoch in range(args.epochs):
        generator.manual_seed(args.seed + epoch)
        for x, y in loader:  # (B, 1, 8, 8), (B,): one batch for all GPUs
            output = model(x)
            loss = nn.functional.cross_entropy(output, y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        loss = torch.stack(losses[-len(loader) :]).mean()
        job.finite(loss, f"{epoch=}")
        x, y = test_set[:]
        with torch.no_grad():
            hits = model.module(x.to(device)).argmax(dim=1) == y.to(device)
        accuracy = hits.double().mean()
        job.put(f"{epoch=} {loss=:.4f} {accuracy=:.4f}")
        checkpoint.save(args.checkpoint, model.module.state_dict())
    return losses


def parse_args(argv: list[str] | None = None):
    """Read the flags; refuse impossible values."""
    numbers = {"epochs": 2, "batch_size": 48, "samples": 1440, "seed": 0}
    parser = job.Flags(__doc__, **numbers, lr=0.05)
    checkpoint.add_flags(parser, "ch2.pt")
    return checkpoint.keep(parser.parse_args(argv))


if __name__ == "__main__":
    gpu = torch.accelerator.current_accelerator(check_available=True)
    train(parse_args(), torch.device(f"{gpu.type}:0" if gpu else "cpu"))
