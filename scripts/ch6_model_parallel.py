"""Chapter 6 - Model parallel: half of the layers on each of two devices.

Run it (no GPU needed):
    python scripts/ch6_model_parallel.py
"""

import argparse
import os
import signal
import textwrap
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


def find_devices(num: int) -> list[torch.device]:
    """Return num devices; the first one stands in for any that are missing."""
    devices = [torch.device("cpu")]
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu is not None:
        count = torch.accelerator.device_count()
        devices = [torch.device(gpu.type, i) for i in range(count)]
    if len(devices) < num:
        say = f"{num} devices wanted, 1 found: all parts lie on {devices[0]}."
        how = f"allranks.vgpu {num} scripts/ch6_model_parallel.py"
        put(f"{say} To see {num}, without a GPU:\n    python -m {how}")
    return [*devices, *[devices[0]] * num][:num]


def home(part: nn.Module) -> torch.device:
    """Return the device that a part's parameters lie on."""
    return next(part.parameters()).device


class Split(nn.Module):
    """Two parts of a net, each on a device of its own."""

    def __init__(self, net: nn.Sequential, at: int, devices):
        super().__init__()
        self.first = net[:at].to(devices[0])
        self.second = net[at:].to(devices[1])

    def forward(self, x):
        x = self.first(x.to(home(self.first)))
        return self.second(x.to(home(self.second)))  # backward: the way back


def report(part: str, module: nn.Module) -> str:
    """Say where a part lies, its size, and its device's peak memory."""
    device, size = home(module), sum(p.numel() for p in module.parameters())
    text = f"{part} part: {size} parameters on {device}"
    if device.type == "cpu":
        return text
    peak = torch.get_device_module(device).max_memory_allocated(device)
    return f"{text}, {peak / 2**20:.1f} MiB at its peak"


def train(args, devices) -> list[torch.Tensor]:
    """Train on all samples; return the loss at each step."""
    torch.manual_seed(args.seed)
    train_set, test_set, net = make_task(args.samples)
    if not 0 < args.split < len(net):
        refuse(f"--split {args.split}: must be 1 to {len(net) - 1}")
    num, net = len(train_set), Split(net, args.split, devices)
    optimizer = torch.optim.SGD(net.parameters(), args.lr, 0.9)
    dice = torch.Generator()
    sampler = RandomSampler(train_set, generator=dice)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    losses = []
    for epoch in range(args.epochs):
        dice.manual_seed(args.seed + epoch)  # a new order
        start = time.perf_counter()
        for x, y in loader:
            output = net(x)  # on the last device: the labels must go there
            loss = nn.functional.cross_entropy(output, y.to(output.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        loss = torch.stack(losses[-len(loader) :]).mean()
        finite(loss, f"{epoch=}")
        rate = num / (time.perf_counter() - start)
        with torch.no_grad():
            tests = DataLoader(test_set, args.batch_size)
            hits = sum((net(x).argmax(1).cpu() == y).sum() for x, y in tests)
        accuracy = hits.item() / len(test_set)
        put(f"{epoch=} {loss=:.4f} {accuracy=:.4f} {rate:.0f} samples/s")
    for part in "first", "second":
        put(report(part, getattr(net, part)))
    return losses


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    numbers = {"--epochs": 3, "--batch-size": 192, "--samples": 1440}
    numbers |= {"--split": 3, "--devices": 2, "--seed": 0, "--lr": 0.05}
    for flag, default in numbers.items():
        how = {"type": type(default), "default": default}
        parser.add_argument(flag, **how, help=f"default: {default}")
    args = in_range(parser.parse_args(argv))
    if args.devices not in (1, 2):
        refuse(f"--devices {args.devices}: must be 1 or 2")
    return args


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
    args = parse_args()
    try:
        train(args, (find_devices(args.devices) * 2)[:2])
    except torch.OutOfMemoryError as error:
        why = f"{error} Try another --split."
        raise SystemExit(textwrap.fill(why, 79)) from None
