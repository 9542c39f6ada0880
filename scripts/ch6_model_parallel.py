"""Chapter 6 - Model parallel: half of the layers on each of two devices.

Run it (no GPU needed):
    python scripts/ch6_model_parallel.py
"""

import job  # first, since importing torch takes seconds

import textwrap
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from tasks import make_task


def home(part: nn.Module) -> torch.device:
    """Return the device that a part's parameters are on."""
    return next(part.parameters()).device


class Split(nn.Module):
    """Two parts of a net, each on a device of its own."""

    def __init__(self, net: nn.Sequential, at: int, devices):
        super().__init__()
        self.first = net[:at].to(devices[0])
        self.second = net[at:].to(devices[1])

    def forward(self, x):
        x = self.first(x.to(home(self.first)))
        return self.second(x.to(home(self.second)))  # backward copies back


def train(args, devices) -> list[torch.Tensor]:
    """Train on all samples; return the loss at each step."""
    torch.manual_seed(args.seed)
    train_set, test_set, net = make_task(args.samples)
    if not 0 < args.split < len(net):
        job.refuse(f"--split {args.split}: must be 1 to {len(net) - 1}")
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
        job.finite(loss, f"{epoch=}")
        rate = num / (time.perf_counter() - start)
        with torch.no_grad():
            tests = DataLoader(test_set, args.batch_size)
            hits = sum((net(x).argmax(1).cpu() == y).sum() for x, y in tests)
        accuracy = hits.item() / len(test_set)
        job.put(f"{epoch=} {loss=:.4f} {accuracy=:.4f} {rate:.0f} samples/s")
    for part in "first", "second":
        job.put(report(part, getattr(net, part)))
    return losses


def report(part: str, module: nn.Module) -> str:
    """Say where a part lies, its size, and its device's peak memory."""
    device, size = home(module), sum(p.numel() for p in module.parameters())
    text = f"{part} part: {size} parameters on {device}"
    if device.type == "cpu":
        return text
    peak = torch.get_device_module(device).max_memory_allocated(device)
    return f"{text}, {peak / 2**20:.1f} MiB at its peak"


def find_devices(num: int) -> list[torch.device]:
    """Return num devices; the first one stands in for any that are missing."""
    devices = [torch.device("cpu")]
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu is not None:
        count = torch.accelerator.device_count()
        devices = [torch.device(gpu.type, i) for i in range(count)]
    if len(devices) < num:
        why = f"{num} devices wanted, 1 found: all parts are on {devices[0]}."
        how = f"allranks.vgpu {num} scripts/ch6_model_parallel.py"
        job.put(f"{why} To see {num}, without a GPU:\n    python -m {how}")
    return [*devices, *[devices[0]] * num][:num]


def parse_args(argv: list[str] | None = None):
    """Read the flags; --split is the number of layers on the first device."""
    numbers = {"epochs": 3, "batch_size": 192, "samples": 1440}
    numbers |= {"split": 3, "devices": 2, "seed": 0, "lr": 0.05}
    args = job.Flags(__doc__, **numbers).parse_args(argv)
    if args.devices not in (1, 2):
        job.refuse(f"--devices {args.devices}: must be 1 or 2")
    return args


if __name__ == "__main__":
    args = parse_args()
    try:
        train(args, (find_devices(args.devices) * 2)[:2])
    except torch.OutOfMemoryError as error:
        other = "another --split" if args.devices == 2 else "--devices 2"
        why = f"{error} Try {other}."
        raise SystemExit(textwrap.fill(why, 79)) from None
