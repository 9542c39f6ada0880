"""Chapter 10 - Accumulate gradients: k small batches as a large one, or not.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch10_accumulate.py
"""

import job  # first, since importing torch takes seconds

from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import nn


def in_parts(net, data, loss, num_parts: int, no_sync: bool = True) -> tuple:
    """Return DDP's gradient after k passes, and how many reductions it did."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    totals = len(data[0]), data[2].sum(), num_parts  # of all ranks' samples
    torch.manual_seed(1)
    ddp, reduced = nn.parallel.DistributedDataParallel(net), []

    def average(_, bucket):  # what DDP does by itself, but counted
        reduced.append(bucket.buffer().numel())
        work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return work.then(lambda done: done.value()[0] / world_size)

    ddp.register_comm_hook(None, average)
    mine = [part[rank::world_size].chunk(num_parts) for part in data]
    for place, part in enumerate(zip(*mine, strict=True)):  # N / (W k) each
        last = place == num_parts - 1
        with ddp.no_sync() if no_sync and not last else nullcontext():
            out = ddp(part[0])  # no_sync looks at the forward, too
            (world_size * loss(out, *part[1:], totals)).backward()
    return in_a_row(net), len(reduced)


def at_once(net: nn.Module, data, loss) -> torch.Tensor:
    """Return the gradient of one process that has all samples in a batch."""
    x, y, tokens = data
    torch.manual_seed(1)  # of dropout
    loss(net(x), y, tokens, (len(x), tokens.sum(), 1)).backward()
    return in_a_row(net)


# A loss takes its part's outputs, targets and tokens, all (B, 1), and totals:
# the number of all samples, of all tokens, and of the parts of a rank.
def each(out, y, tokens, totals) -> torch.Tensor:
    """Return the mean over samples, as a part of the mean over all."""
    return (out - y).square().sum() / totals[0]


def forgotten(out, y, tokens, totals) -> torch.Tensor:
    """Return a mean over this part, so that k of them add up to k times it."""
    return each(out, y, tokens, totals) * totals[2]


def mean_of_means(out, y, tokens, totals) -> torch.Tensor:
    """Return the mean over this part's tokens, times the part's share."""
    mean = (tokens * (out - y).square()).sum() / tokens.sum()
    return mean * len(y) / totals[0]


def by_tokens(out, y, tokens, totals) -> torch.Tensor:
    """Return this part's share of the mean over the tokens of all parts."""
    return (tokens * (out - y).square()).sum() / totals[1]


def in_a_row(net: nn.Module) -> torch.Tensor:
    """Return all gradients of a net, in a row; of shards, all of them."""
    grads = [p.grad for p in net.parameters()]
    grads = [g.full_tensor() if hasattr(g, "to_local") else g for g in grads]
    return torch.cat([g.flatten() for g in grads])


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    """Return how far a tensor is off, as a share of the right one's length."""
    return ((found - right).norm() / right.norm()).item()


def make_around(middle) -> nn.Module:
    """Return a small net in float64, with a layer of choice in the middle."""
    torch.manual_seed(0)
    layers = nn.Linear(8, 16), middle(16), nn.Tanh(), nn.Linear(16, 1)
    return nn.Sequential(*layers).double()


def make_texts(num: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Return inputs (N, 8), targets (N, 1), and how many tokens each has."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 8, generator=draw, dtype=torch.double)
    y = x[:, :1].sin() + 0.1 * x[:, 1:2]
    tokens = torch.randint(1, 100, (num, 1), generator=draw)
    return x, y, tokens.double()


def parse_args(argv: list[str] | None = None):
    """Read the flags; --samples are those of all ranks."""
    return job.Flags(__doc__, parts=4, samples=64, seed=0).parse_args(argv)


def main(args, rank: int, world_size: int, device) -> None:
    """Compare W ranks x k parts with one process that has the large batch."""
    num = world_size * args.parts
    if args.samples % num or args.samples < 2 * num:
        why = f"--samples {args.samples}: must be a multiple of {num}"
        job.refuse(f"{why}, ranks x --parts, and at least twice as many")
    data = [part.to(device) for part in make_texts(args.samples, args.seed)]
    tries = {
        "plain": (nn.Identity, each),
        "plain, not divided by k": (nn.Identity, forgotten),
        "layer norm": (nn.LayerNorm, each),
        "group norm": (partial(nn.GroupNorm, 4), each),
        "batch norm": (nn.BatchNorm1d, each),
        "batch norm, frozen": (lambda n: nn.BatchNorm1d(n).eval(), each),
        "dropout": (lambda _: nn.Dropout(0.1), each),
        "tokens, mean of means": (nn.Identity, mean_of_means),
        "tokens, all counted": (nn.Identity, by_tokens),
        "tokens, without no_sync": (nn.Identity, by_tokens, False),
    }
    for name, (middle, loss, *no_sync) in tries.items():
        whole = at_once(make_around(middle).to(device), data, loss)
        net = make_around(middle).to(device)
        parts, count = in_parts(net, data, loss, args.parts, *no_sync)
        if rank == 0:
            wrong = f"{off(parts, whole):.0e} off, reduced {count} x"
            job.say(f"{name:25} {wrong}")


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
