"""What chance does to the figures of chapter 10: the same runs with five seeds.

No clock is read, so that a busy machine changes nothing.
"""

from argparse import Namespace

import torch
import torch.distributed as dist
from torch.func import grad, vmap

from scripts import ch10_batch, ch10_precision

SEEDS = range(5)
CPU = torch.device("cpu")


def span(values: list[float]) -> dict[str, float]:
    """Return the smallest and the largest value."""
    return {"low": min(values), "high": max(values)}


def losses() -> dict:
    """Return how far each way's test loss is above fp32's, and who stands still."""
    found = {way: [] for way in ch10_precision.WAYS}
    still = {way: [] for way in found}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for seed in SEEDS:
        args = Namespace(steps=150, batch_size=8, seed=seed, lr=3e-4)
        for way in found:
            values, share, _ = ch10_precision.train(args, way, CPU)
            found[way].append(values[-1])
            still[way].append(share)
    dist.destroy_process_group()
    exact = found.pop("fp32")
    names = {way: way.split()[-1] for way in found}
    return {
        names[way]: {
            "above": span([a - b for a, b in zip(values, exact, strict=True)]),
            "apart": max(abs(a - b) for a, b in zip(values, exact, strict=True)),
            "still": span(still[way]),
        }
        for way, values in found.items()
    }


def search() -> dict:
    """Return what the rules cost, and what a larger batch saves, over all seeds."""
    data = ch10_batch.read_digits(1440, CPU)
    steps = {}  # of the nine rates, by (kind, batch, warmup), for each seed
    for kind in ch10_batch.FIRST:
        for batch in ch10_batch.BATCHES:
            for warmup in (1, 60) if (kind, batch < 256) == ("SGD", True) else (1,):
                for seed in SEEDS:
                    args = Namespace(steps=2000, seed=seed, warmup=warmup, goal=0.1)
                    row = ch10_batch.train(args, data, kind, batch).tolist()
                    steps.setdefault((kind, batch, warmup), []).append(row)

    def rule(kind: str, batch: int, share: int, warmup: int = 1) -> list[float]:
        """Return how many times as many steps as the best a rule's rate needs."""
        ratios = []
        pairs = steps[kind, 4, warmup], steps[kind, batch, warmup]
        for first, row in zip(*pairs, strict=True):
            up = (batch // 4).bit_length() - 1
            place = first.index(min(first)) + up // share
            needs = row[place] if place < len(row) else torch.inf
            ratios.append(needs / min(row))
        return ratios

    def shares(kind: str, small: int, large: int) -> list[float]:
        """Return the share of a small batch's steps that a large one needs."""
        pairs = zip(steps[kind, small, 1], steps[kind, large, 1], strict=True)
        return [min(b) / min(a) for a, b in pairs]

    roots = [ratio for batch in (16, 64, 256) for ratio in rule("Adam", batch, 2)]
    too_fast = [min(row[6:]) for b in (16, 64, 256) for row in steps["SGD", b, 1]]
    return {
        "share": {
            f"{kind}_{large}": span(shares(kind, small, large))
            for kind in ch10_batch.FIRST
            for small, large in ((4, 16), (16, 64), (64, 256))
        },
        "root": span(roots),
        "linear_16": sum(r < torch.inf for r in rule("SGD", 16, 1)),
        "linear_64": sum(r < torch.inf for r in rule("SGD", 64, 1)),
        "warm_16": sum(r < torch.inf for r in rule("SGD", 16, 1, 60)),
        "warm_64": sum(r < torch.inf for r in rule("SGD", 64, 1, 60)),
        "above_1": sum(r < torch.inf for r in too_fast),
    }


def noise() -> dict:
    """Return the noise scale by G itself, before and after 100 steps."""
    x, y = data = ch10_batch.read_digits(1440, CPU)

    def loss(weights: tuple, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ch10_batch.losses([w[None] for w in weights], x[None], y[None]).sum()

    each, found = vmap(grad(loss), (None, 0, 0)), {"0": [], "100": []}
    for seed in SEEDS:
        weights = ch10_batch.make_nets(1, seed, CPU)
        for step in range(101):
            if str(step) in found:
                rows = each(tuple(w[0] for w in weights), x, y)
                rows = torch.cat([r.flatten(1) for r in rows], dim=1).double()
                mean = rows.mean(dim=0)
                scatter = (rows - mean).square().sum(dim=1).mean()
                found[str(step)].append((scatter / mean.square().sum()).item())
            slopes = ch10_batch.slopes(weights, data)
            for w, slope in zip(weights, slopes, strict=True):
                w -= 0.5 * slope
    return {step: span(values) for step, values in found.items()}


def run() -> dict:
    """Return all of them; it takes some minutes."""
    return {"losses": losses(), "search": search(), "noise": noise()}


def report(figures: dict) -> str:
    """Return the figures that the page compares."""
    lines = [f"{way}: {found}" for way, found in figures["losses"].items()]
    lines += [f"{name}: {found}" for name, found in figures["search"].items()]
    return "\n".join([*lines, f"noise scale: {figures['noise']}"])
