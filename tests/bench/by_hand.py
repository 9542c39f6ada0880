"""The DDPs of chapter 8 against torch's, and each step of the ladder on a set link."""

import statistics

from allranks import Ranks

ROUNDS = 9  # of all ways to train, in turn; every other round in reverse order
LINK = "link:2ms+0.02GB/s"  # slow enough to be seen beside a CPU's own noise
WAYS = ("per_parameter", "flat", "buckets", "by_hand", "torch")


def on_rank(ways: list[str], kind: str, steps: int, rounds: int) -> dict:
    """Train in every way in turn; return seconds per step, and those of CPU time.

    Args:
        kind: "mlp", 20 MB of gradients; or "gpt", 0.55 MB in 30 parameters.
    Returns:
        For each way, (rounds, 2).
    """
    import time

    import torch
    import torch.distributed as dist
    from torch import nn

    from scripts import ch8_buckets, ch8_ddp_by_hand, ch8_flat, ch8_per_parameter
    from scripts.ch8_local_sgd import GPT

    torch.set_num_threads(1)

    def net() -> nn.Module:
        torch.manual_seed(0)
        if kind == "gpt":
            return GPT()
        layers = [nn.Linear(64, 2200), nn.ReLU(), nn.Linear(2200, 2200), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(2200, 10))

    caps = {"gpt": (0.125, 0.125), "mlp": (1, 25)}[kind]
    cap_mb = caps[0] if kind == "gpt" else None
    makers = {
        "alone": lambda: net(),
        "per_parameter": lambda: ch8_per_parameter.DDP(net()),
        "flat": lambda: ch8_flat.DDP(net()),
        "buckets": lambda: ch8_buckets.DDP(net(), caps[0]),
        "by_hand": lambda: ch8_ddp_by_hand.DDP(net(), caps),
        "torch": lambda: nn.parallel.DistributedDataParallel(
            net(), bucket_cap_mb=cap_mb
        ),
    }
    models = {way: makers[way]() for way in ways}
    optimizers = {
        way: torch.optim.SGD(model.parameters(), 0.001, 0.9)
        for way, model in models.items()
    }
    x = torch.randn(64, 64) if kind == "mlp" else torch.randint(256, (16, 64))

    def train(way: str) -> tuple[float, float]:
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            optimizers[way].zero_grad()
            models[way](x).square().mean().backward()
            if hasattr(models[way], "average"):
                models[way].average()
            optimizers[way].step()
        return (
            (time.perf_counter() - wall) / steps,
            (time.process_time() - cpu) / steps,
        )

    for way in ways:
        train(way)
    found = {way: [] for way in ways}
    for number in range(rounds):
        for way in list(ways)[:: 1 if number % 2 else -1]:
            found[way].append(train(way))
    return found


def ratio(by_rank: list[dict], one: str, other: str, which: int) -> dict:
    """Compare two ways, round by round: the median of their ratios, and its ends."""
    rounds = range(len(by_rank[0][one]))
    ratios = sorted(
        sum(found[one][n][which] for found in by_rank)
        / sum(found[other][n][which] for found in by_rank)
        for n in rounds
    )
    return {
        "ratio": statistics.median(ratios),
        "ratio_min": ratios[len(ratios) // 4],  # quartiles: the rest is the machine's
        "ratio_max": ratios[-1 - len(ratios) // 4],
    }


def run() -> dict:
    """Measure two models against torch's DDP, and the ladder on the link."""
    result = {"rounds": ROUNDS}
    with Ranks(2) as ranks:
        for kind, steps in ("mlp", 8), ("gpt", 15):
            ways = ["by_hand", "torch"]
            found = ranks.run(
                on_rank, ways, kind, steps, 2 * ROUNDS + 1, timeout=600, quiet=True
            )
            result[kind] = ratio(found, *ways, 0) | {
                "cpu": ratio(found, *ways, 1)["ratio"]
            }
    ways = ["alone", *WAYS]
    with Ranks(2, backend=LINK) as ranks:
        found = ranks.run(on_rank, ways, "gpt", 5, ROUNDS, timeout=600, quiet=True)
    for way in WAYS:
        result[way] = ratio(found, way, "alone", 0)
        of_rank = [[wall for wall, _ in one[way]] for one in found]
        result[way]["ms"] = 1e3 * min(map(statistics.median, of_rank))
    alone = [[wall for wall, _ in one["alone"]] for one in found]
    return result | {"alone_ms": 1e3 * min(map(statistics.median, alone))}


def report(results: dict) -> str:
    """Return a line for each comparison."""
    lines = [
        f"{kind}: {r['ratio']:.2f} of torch's time ({r['ratio_min']:.2f} to "
        f"{r['ratio_max']:.2f}), {r['cpu']:.2f} of its CPU time"
        for kind in ("mlp", "gpt")
        for r in [results[kind]]
    ]
    for way in WAYS:
        r = results[way]
        lines.append(
            f"{LINK}, {way}: {r['ms']:.0f} ms, {r['ratio']:.2f} of a silent step "
            f"({r['ratio_min']:.2f} to {r['ratio_max']:.2f})"
        )
    return "\n".join([*lines, f"alone: {results['alone_ms']:.0f} ms"])
