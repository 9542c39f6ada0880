"""Chapter 5 - One process: the training that DDP will share out.

Run it (no GPU needed):
    python scripts/ch5_single.py
"""

import argparse
import os
import signal
import time
from typing import NoReturn

if __name__ == "__main__":  # before the slow imports
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # no traceback

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


def make_task(num: int) -> tuple[TensorDataset, TensorDataset, nn.Module]:
    """Make handwritten digits, num to train on and 357 to test, and a CNN."""
    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    x = x.to(torch.get_default_dtype()).view(-1, 1, 8, 8) / 16
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    parts = order[:1440][:num], order[1440:]
    layers = []  # much arithmetic, but only 158,538 numbers to send
    for channels in (1, 64), (64, 128), (128, 64):
        layers += [nn.Conv2d(*channels, 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10)]
    return *(TensorDataset(x[i], y[i]) for i in parts), nn.Sequential(*layers)


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
        finite(loss, f"{epoch=}")
        rate = num / (time.perf_counter() - start)
        x, y = test_set[:]
        with torch.no_grad():
            hits = net(x.to(device)).argmax(dim=1) == y.to(device)
        accuracy = (hits.sum() / len(hits)).item()
        put(f"{epoch=} {loss=:.4f} {accuracy=:.4f} {rate:.0f} samples/s")
    return losses


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    numbers = {"--epochs": 8, "--batch-size": 192, "--samples": 1440}
    for flag, default in (numbers | {"--seed": 0, "--lr": 0.05}).items():
        how = {"type": type(default), "default": default}
        parser.add_argument(flag, **how, help=f"default: {default}")
    return in_range(parser.parse_args(argv))


# The rest stands in every script: a job that cannot go on ends in a sentence.
def refuse(why: str) -> NoReturn:
    """End all ranks with one sentence: all found the same fault."""
    started = "TORCHELASTIC_USE_AGENT_STORE" in os.environ  # by a launcher
    if started and os.environ.get("LOCAL_RANK") != "0":
        time.sleep(9)  # rank 0 says it; then the launcher ends this rank
    if started and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # or exit may abort
    raise SystemExit(why)


def put(line: str) -> None:
    """Print a line in one write; end with a sentence if stdout fails."""
    try:
        print(f"{line}\n", end="", flush=True)
    except OSError as error:  # a full disk, or `| head`, which left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # no second try at exit
        why = f"cannot print to stdout: {error.strerror}"
        refuse(f"{why}: ended")


def in_range(args: argparse.Namespace) -> argparse.Namespace:
    """Refuse impossible numbers before anything is started."""
    most = {"seed": 2**32 - 1, "samples": 1440, "nproc_per_node": 64}
    most |= {"workers": 64, "numbers": 64, "width": 8192, "columns": 16384}
    for name, value in vars(args).items():
        flag, low = "--" + name.replace("_", "-"), int(name != "seed")
        high = most.get(name, 65536)
        if type(value) is int and not low <= value <= high:
            refuse(f"{flag} {value}: must be {low} to {high}")
        if type(value) is float and not 1e-30 <= value <= 1e30:
            refuse(f"{flag} {value}: must be 1e-30 to 1e+30")
    return args


def finite(loss: torch.Tensor, where: str) -> None:
    """End all ranks if the loss, which is the same on all, is not finite."""
    if not loss.isfinite():
        refuse(f"{where}: the loss is {loss.item()}: start with a lower --lr")


if __name__ == "__main__":
    gpu = torch.accelerator.current_accelerator(check_available=True)
    train(parse_args(), gpu or torch.device("cpu"))
