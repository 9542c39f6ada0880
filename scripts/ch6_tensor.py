"""Chapter 6 - Tensor parallel: one layer on all ranks, by columns and by rows.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch6_tensor.py
"""

import job  # first, since importing torch takes seconds

import torch
import torch.distributed as dist
from torch import nn

from tasks import load_digits


class Fork(torch.autograd.Function):
    """Pass x on; in the backward pass, sum the gradients of all ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class Join(torch.autograd.Function):
    """Sum what all ranks computed; pass the gradient on as it is."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def share(whole: torch.Tensor, dim: int) -> nn.Parameter:
    """Return this rank's part of a weight."""
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
        job.refuse(f"{world_size} ranks > width {args.width}")
    torch.manual_seed(args.seed)  # all make the same; each keeps its part
    images, digits = load_digits()
    images = images.to(torch.get_default_dtype()) / 16  # (1797, 64)
    wide = ColumnLinear(nn.Linear(64, args.width))
    narrow = RowLinear(nn.Linear(args.width, 10))
    shapes = f"{tuple(wide.weight.shape)} and {tuple(narrow.weight.shape)}"
    job.say(f"weights {shapes}")
    net = nn.Sequential(wide, nn.ReLU(), narrow).to(device)
    optimizer = torch.optim.SGD(net.parameters(), args.lr, 0.9)
    dice, losses = torch.Generator().manual_seed(args.seed), []
    for step in range(args.steps):  # all ranks see the same samples
        pick = torch.randint(len(images), (args.batch_size,), generator=dice)
        x, y = images[pick].to(device), digits[pick].to(device)
        loss = nn.functional.cross_entropy(net(x), y)  # (B, 64), (B,)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        job.finite(losses[-1], f"{step=}")
        if rank == 0 and step % 20 == 19:
            loss = torch.stack(losses[-20:]).mean()
            job.say(f"steps {step - 18} to {step + 1}: {loss=:.4f}")
    return losses


def parse_args(argv: list[str] | None = None):
    """Read the flags; --width is the number of outputs that are shared out."""
    numbers = {"steps": 100, "batch_size": 96, "width": 1024, "seed": 0}
    return job.Flags(__doc__, **numbers, lr=0.05).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        train(args, *place)
