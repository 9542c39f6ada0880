"""Chapter 2 - Before: a training script as it stands in many old repositories.

Run it (no GPU needed):
    python scripts/ch2_before.py
"""

import argparse
import os
from contextlib import suppress

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


def make_task(num: int) -> tuple[TensorDataset, TensorDataset, nn.Module]:
    """Handwritten digits, num to train on and 357 to test on, and a CNN."""
    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    x = x.to(torch.get_default_dtype()).view(-1, 1, 8, 8) / 16
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    parts = order[:1440][:num], order[1440:]
    layers = []  # much arithmetic, but only 158,538 numbers to send
    for channels in (1, 64), (64, 128), (128, 64):
        layers += [nn.Conv2d(*channels, 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10)]
    return *(TensorDataset(x[i], y[i]) for i in parts), nn.Sequential(*layers)


def save(path: str, state: dict) -> None:
    """Write a new file, then rename it: no crash can break the old one."""
    try:
        with open(f"{path}.new", "wb") as file:  # buffered: it writes it all
            torch.save(state, file)
            file.flush()
            os.fsync(file)
        os.replace(f"{path}.new", path)
    except BaseException as error:  # a full disk, Ctrl-C: leave nothing half
        with suppress(OSError):
            os.remove(f"{path}.new")
        for cause in error, error.__context__:
            if isinstance(cause, OSError):
                why = f"{path} is not saved: {cause.strerror}"
                raise SystemExit(f"{why}: make room or name another") from None
        raise


def train(args, device: torch.device) -> list[torch.Tensor]:
    """Train on every GPU of this machine; return the loss at each step."""
    torch.manual_seed(args.seed)
    train_set, test_set, net = make_task(args.samples)
    model = nn.DataParallel(net.to(device))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, 0.9)
    dice = torch.Generator()
    sampler = RandomSampler(train_set, generator=dice)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    losses = []
    for epoch in range(args.epochs):
        dice.manual_seed(args.seed + epoch)
        for x, y in loader:
            output = model(x)
            loss = nn.functional.cross_entropy(output, y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        loss = torch.stack(losses[-len(loader) :]).mean()
        x, y = test_set[:]
        with torch.no_grad():
            hits = model.module(x.to(device)).argmax(dim=1) == y.to(device)
        accuracy = hits.double().mean()
        print(f"{epoch=} {loss=:.4f} {accuracy=:.4f}")
        save(args.checkpoint, model.module.state_dict())
    return losses


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse what cannot be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = {"--epochs": 2, "--batch-size": 48, "--samples": 1440}
    for flag, default in (numbers | {"--seed": 0, "--lr": 0.05}).items():
        parser.add_argument(flag, type=type(default), default=default)
    parser.add_argument("--checkpoint", default="ch2.pt")
    args = parser.parse_args(argv)
    for name in "epochs", "batch_size", "samples", "lr":
        if not 0 < vars(args)[name] < float("inf"):
            raise SystemExit(f"{name} {vars(args)[name]}: must be above 0")
    folder = os.path.dirname(args.checkpoint) or "."
    if os.path.isdir(args.checkpoint) or not os.path.isdir(folder):
        raise SystemExit(f"--checkpoint {args.checkpoint}: cannot be a file")
    return args


if __name__ == "__main__":
    gpu = torch.accelerator.current_accelerator(check_available=True)
    train(parse_args(), torch.device(f"{gpu.type}:0" if gpu else "cpu"))
