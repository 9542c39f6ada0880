"""Chapter 10 - Larger batches: two rules for the rate, and what they save.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch10_batch.py
"""

import job  # first, since importing torch takes seconds

import itertools

import torch
import torch.distributed as dist
from torch.nn import functional as F

from tasks import read_digits

BATCHES = 4, 16, 64, 256
FIRST = {"SGD": -5, "Adam": -9}  # of nine rates: 2^-5, 2^-4, ...


def train(args, data, kind: str, batch: int) -> torch.Tensor:
    """Return each rate's steps to the goal; inf if above 3 x the best's."""
    rates = 2.0 ** (FIRST[kind] + torch.arange(9, device=data[0].device))
    weights = make_nets(len(rates), args.seed, rates.device)  # a net per rate
    draw = torch.Generator().manual_seed(args.seed + 1)
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    done, step = torch.full_like(rates, torch.inf), 0
    while step < min(args.steps, 3 * done.min()) and done.isinf().any():
        step += 1
        grads = slopes(weights, data, batch, draw)
        for w, g, m, v in zip(weights, grads, first, second, strict=True):
            if kind == "Adam":  # with betas of 0.9 and 0.99
                m.lerp_(g, 0.1), v.lerp_(g * g, 0.01)
                root = (v / (1 - 0.99**step)).sqrt() + 1e-8
                g = m / (1 - 0.9**step) / root
            w -= rates.view(-1, 1, 1) * g * min(1, step / args.warmup)
        if step % max(1, step // 20) == 0:  # look every 5 %
            done[(losses(weights, *data) < args.goal) & done.isinf()] = step
    return done


def noise_scale(local: float, mean: float, size: int, num: int) -> tuple:
    """Solve |g|^2 = |G|^2 + tr(S) / B, known for size and num x size."""
    noise = (local - mean) * size * num / (num - 1)
    return noise, mean - noise / (size * num)


def measure_noise(weights, data, size: int, rounds: int, draw) -> tuple:
    """Measure tr(S), |G|^2 of one net, and how far |G|^2 may be off."""
    squares = torch.zeros(rounds, 2, device=data[0].device)
    for row in squares:
        grads = slopes(weights, data, size, draw)
        local = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(mean := local.clone(), dist.ReduceOp.AVG)
        row.copy_(torch.stack([local.square().sum(), mean.square().sum()]))
    dist.all_reduce(squares, dist.ReduceOp.AVG)
    noise, signal = noise_scale(*squares.T, size, dist.get_world_size())
    return noise.mean(), signal.mean(), 2 * signal.std() / rounds**0.5


def make_nets(num: int, seed: int, device) -> list[torch.Tensor]:
    """Return the weights of num equal nets, which are trained side by side."""
    draw = torch.Generator().manual_seed(seed)
    sizes = (1, 65, 32), (1, 33, 10)  # the last row of each is the bias
    ones = [torch.randn(s, generator=draw) / s[1] ** 0.5 for s in sizes]
    return [one.repeat(num, 1, 1).to(device) for one in ones]


def losses(weights: list[torch.Tensor], x, y) -> torch.Tensor:
    """Return each net's mean loss, (L,), on the same samples (B, 64)."""
    first, last = weights  # (L, 65, 32), (L, 33, 10)
    x = x.expand(len(first), -1, -1)
    h = torch.baddbmm(first[:, -1:], x, first[:, :-1])
    h = torch.baddbmm(last[:, -1:], h.relu(), last[:, :-1])  # (L, B, 10)
    each = F.cross_entropy(h.mT, y.expand(len(h), -1), reduction="none")
    return each.mean(dim=1)


def slopes(weights: list[torch.Tensor], data, size=0, draw=None) -> tuple:
    """Return each net's gradient, on all samples or on a batch of a size."""
    weights, mine = [w.detach().requires_grad_() for w in weights], slice(None)
    if draw:
        mine = torch.randint(len(data[0]), (size,), generator=draw)
    loss = losses(weights, *(part[mine] for part in data))
    return torch.autograd.grad(loss.sum(), weights)


def parse_args(argv: list[str] | None = None):
    """Read the flags; the --goal is a loss on all samples."""
    numbers = {"steps": 2000, "samples": 1440, "warmup": 1, "seed": 0}
    return job.Flags(__doc__, **numbers, goal=0.1).parse_args(argv)


def descend(args, rank: int, data) -> None:
    """Train one net by all samples; print its noise scale on the way."""
    weights = make_nets(1, args.seed, data[0].device)
    draw = torch.Generator().manual_seed(args.seed + rank)
    for step in range(101):
        whole = slopes(weights, data)  # G itself: these are all samples
        if step in (0, 10, 30, 100):
            noise, signal, off = measure_noise(weights, data, 8, 200, draw)
            least, most = (signal - off).relu(), signal.relu() + off
            span = f"noise scale {noise / most:.0f} to {noise / least:.0f}"
            exact = noise / sum(g.square().sum() for g in whole)
            loss = losses(weights, *data).item()
            if rank == 0:
                by_all = f"by G itself {exact:.0f}"
                job.say(f"{step=} {loss=:.2f}: {span}, {by_all}")
        for w, g in zip(weights, whole, strict=True):
            w -= 0.5 * g  # a step of gradient descent on all samples


def main(args, rank: int, world_size: int, device) -> None:
    """Measure the noise scale, then try two rules for the learning rate."""
    if world_size < 2:
        why = "1 rank: comparing its gradient with the mean needs 2 at least"
        job.refuse(why)
    descend(args, rank, data := read_digits(args.samples, device))
    tries = [*itertools.product(FIRST, BATCHES)]
    steps = torch.zeros(len(tries), 9, device=device)
    for place in range(rank, len(tries), world_size):  # a rank tries its share
        steps[place] = train(args, data, *tries[place])
    dist.all_reduce(steps)
    start = {}
    for (kind, batch), row in zip(tries, steps.tolist(), strict=True):
        best, up = row.index(min(row)), (batch // BATCHES[0]).bit_length() - 1
        first = start.setdefault(kind, best)  # the rules begin with this one
        rules = {"best": best, "linear": first + up, "root": first + up // 2}
        for name, place in rules.items():
            rate = f"{2.0 ** (FIRST[kind] + place):.3g}"
            needs = f"{row[place]:.0f}" if place < len(row) else "not tried"
            rules[name] = f"{name} {rate} ({needs})"
        said = ", ".join(rules.values()) if min(row) < torch.inf else "no best"
        if rank == 0:
            job.say(f"{kind} {batch}: {said}")


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
