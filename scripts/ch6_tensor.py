"""Chapter 6 - Tensor parallel: one layer on all ranks, by columns and by rows.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch6_tensor.py
"""

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn


def setup() -> tuple[int, int, torch.device]:
    """Join the group torchrun describes: (rank, world_size, device)."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit(__doc__)  # started with python, not torchrun
    device = torch.device("cpu")
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu is not None and gpu.type != "mps":  # a Mac's GPU has no collectives
        num_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
        if num_ranks > (num_gpus := torch.accelerator.device_count()):
            why = f"{num_ranks} ranks on this machine, but {num_gpus} GPUs"
            raise SystemExit(f"{why}: lower --nproc-per-node to {num_gpus}")
        device = torch.device(gpu.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    timeout = timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT_S", 300)))
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        timeout=timeout,
        device_id=None if device.type == "cpu" else device,
    )
    return dist.get_rank(), dist.get_world_size(), device


def say(text: str) -> None:
    """Print one line in one write: two ranks' lines never merge."""
    who = f"[rank {dist.get_rank()}/{dist.get_world_size()}]"
    print(f"{who} {text}\n", end="", flush=True)


class Fork(torch.autograd.Function):
    """Forward: nothing. Backward: the sum of what all ranks send back."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class Join(torch.autograd.Function):
    """Forward: the sum of what all ranks computed. Backward: nothing."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def share(whole: torch.Tensor, dim: int) -> nn.Parameter:
    """This rank's part of a weight."""
    parts = whole.detach().tensor_split(dist.get_world_size(), dim)
    return nn.Parameter(parts[dist.get_rank()].clone())


class ColumnLinear(nn.Module):
    """A part of the outputs, from the whole input."""

    def __init__(self, whole: nn.Linear):
        super().__init__()
        self.weight, self.bias = share(whole.weight, 0), share(whole.bias, 0)

    def forward(self, x):
        return nn.functional.linear(Fork.apply(x), self.weight, self.bias)


class RowLinear(nn.Module):
    """The whole output, summed up from each rank's part of the input."""

    def __init__(self, whole: nn.Linear):
        super().__init__()
        self.weight, self.bias = share(whole.weight, 1), whole.bias

    def forward(self, x):
        return Join.apply(nn.functional.linear(x, self.weight)) + self.bias


def train(args, rank: int, world_size: int, device) -> list[torch.Tensor]:
    """Train a split net; return the loss at each step, the same on all."""
    if world_size > args.width:
        raise SystemExit(f"{world_size} ranks > width {args.width}")
    torch.manual_seed(args.seed)  # all make the same; each keeps its part
    images, digits = map(torch.as_tensor, load_digits(return_X_y=True))
    images = images.to(torch.get_default_dtype()) / 16  # (1797, 64)
    wide = ColumnLinear(nn.Linear(64, args.width))
    narrow = RowLinear(nn.Linear(args.width, 10))
    say(f"weights {tuple(wide.weight.shape)} and {tuple(narrow.weight.shape)}")
    net = nn.Sequential(wide, nn.ReLU(), narrow).to(device)
    optimizer = torch.optim.SGD(net.parameters(), args.lr, 0.9)
    dice, losses = torch.Generator().manual_seed(args.seed), []
    for step in range(args.steps):  # all ranks see the same samples
        pick = torch.randint(len(images), (args.batch_size,), generator=dice)
        x, y = images[pick].to(device), digits[pick].to(device)
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if rank == 0 and step % 20 == 19:
            loss = torch.stack(losses[-20:]).mean()
            say(f"steps {step - 18} to {step + 1}: {loss=:.4f}")
    return losses


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse what cannot be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = {"--steps": 100, "--batch-size": 96, "--width": 1024}
    for flag, default in (numbers | {"--seed": 0, "--lr": 0.05}).items():
        parser.add_argument(flag, type=type(default), default=default)
    args = parser.parse_args(argv)
    for name in "steps", "batch_size", "width", "lr":
        if not 0 < vars(args)[name] < float("inf"):
            raise SystemExit(f"{name} {vars(args)[name]}: must be above 0")
    return args


if __name__ == "__main__":
    train(parse_args(), *setup())
    dist.destroy_process_group()
