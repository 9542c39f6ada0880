"""Chapter 10 - Weights in bf16: small steps get lost, and three cures.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch10_precision.py
"""

import job  # first, since importing torch takes seconds

import torch
import torch.distributed as dist
from torch import nn

from tasks import GPT, cut, read_text

WAYS = "fp32", "bf16", "bf16 + master", "bf16 + Kahan", "bf16, stochastic"


def at_random(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Round float32 to a bf16 neighbor, the nearer one more often.

    A bf16 number is the upper half of a float32; the lower says how far x is
    on its way to the next. Add a lower half at random, and it carries into
    the upper one as often as x is far. So the mean is x.
    """
    bits = x.view(torch.int32)
    noise = torch.randint(2**16, x.shape, generator=draw, dtype=torch.int32)
    noise = noise.to(x.device)
    return (bits + noise).bitwise_and(-(2**16)).view(torch.float32).bfloat16()


def keep(way: str, weight, before, exact, draw: torch.Generator):
    """Store what the optimizer wants; return where its step left no trace.

    What it goes on from was before, and is in exact afterwards.
    """
    wanted = exact.clone()
    random = way == "bf16, stochastic"
    weight.copy_(at_random(exact, draw) if random else exact)
    if way != "bf16 + master":
        exact.copy_(weight)
    if way == "bf16 + Kahan":  # two bytes more: what rounding left out
        exact += (wanted - exact).bfloat16()
    return (exact == before) & (wanted != before)


def train(args, way: str, device) -> tuple[list[float], float, nn.Module]:
    """Return the losses, the test's last, who stood still, and the net."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)  # the same weights for all ranks and ways
    net, (text, test) = GPT().to(device), read_text()
    net = net if way == "fp32" else net.bfloat16()
    weights = list(net.parameters())
    exact = [w.detach().float().clone() for w in weights]
    optimizer = torch.optim.AdamW(exact, args.lr)
    windows = torch.Generator().manual_seed(args.seed)
    draw = torch.Generator().manual_seed(args.seed)  # the same on all ranks!
    num, losses, still = (world_size * args.batch_size,), [], []
    for _ in range(args.steps):
        starts = torch.randint(len(text) - 64, num, generator=windows)  # (WB,)
        loss = loss_of(net, text, starts[rank::world_size], device)
        gradients = torch.autograd.grad(loss, weights)
        for x, mean in zip(exact, average(gradients), strict=True):
            x.grad = mean
        before = [x.detach().clone() for x in exact]
        optimizer.step()
        with torch.no_grad():
            for parts in zip(weights, before, exact, strict=True):
                still.append(keep(way, *parts, draw).flatten())
        losses.append(loss.detach())
    starts = torch.arange(0, len(test) - 64, 640)
    mine = starts[rank::world_size]  # not equally many: weigh them
    with torch.no_grad():
        loss = loss_of(net, test, mine, device) * len(mine) * world_size
    means = torch.stack([*losses, loss / len(starts)])
    dist.all_reduce(means, dist.ReduceOp.AVG)
    job.finite(means[-1], f"after --steps {args.steps}, {way}")
    return means.tolist(), torch.cat(still).double().mean().item(), net


def loss_of(net: nn.Module, text, starts, device) -> torch.Tensor:
    """Return the mean loss of the bytes that follow, computed in float32."""
    x, y = (part.to(device) for part in cut(text, starts, 64))  # (B, T)
    logits = net(x).float().flatten(0, 1)  # (B * T, 256)
    return nn.functional.cross_entropy(logits, y.flatten())


def average(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """Average gradients over all ranks, in float32, as one message."""
    flat = torch.cat([g.float().flatten() for g in gradients])
    dist.all_reduce(flat)
    sizes = [g.numel() for g in gradients]
    means = (flat / dist.get_world_size()).split(sizes)
    return [m.view_as(g) for m, g in zip(means, gradients, strict=True)]


def parse_args(argv: list[str] | None = None):
    """Read the flags; --batch-size is per rank."""
    numbers = {"steps": 150, "batch_size": 4, "seed": 0}
    return job.Flags(__doc__, **numbers, lr=3e-4).parse_args(argv)


def main(args, rank: int, world_size: int, device) -> None:
    """Train five times from the same weights on the same text."""
    for way in WAYS:
        losses, still, _ = train(args, way, device)
        if rank == 0:
            loss = f"test loss {losses[-1]:.3f}"
            still = f"{still:4.0%} of the weights stand still"
            job.say(f"{way:15}  {loss}, {still}")


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
