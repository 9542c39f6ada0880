"""The DDPs of chapter 8 against torch's, and each step of the ladder on a set link."""

import statistics

from allranks import Ranks

ROUNDS = 9  # of all ways to train, in turn; every other round in reverse order
LINK = "link:2000us+0.01GB/s"
WAYS = ("per_parameter", "flat", "from_hook", "buckets")
WAYS += ("buckets_late", "by_hand", "torch")
LATE = WAYS[-3:]  # their model has the layer that it uses first at its end
AGAINST = ("by_hand", "torch", "torch_view")
LAYERS, LAYER_S = 12, 0.01  # of the ladder's model; a layer's backward sleeps so long


def on_rank(kind: str, rounds: int, ways: tuple[str, ...] = ()) -> dict:
    """Train in every way in turn; return seconds per step, and those of CPU time.

    Args:
        kind: "mlp", 20 MB of gradients; "gpt", 0.55 MB in 30 parameters; or "slow":
            0.8 MB in layers whose backward is a sleep, so that the machine's load
            hardly counts.
    Returns:
        For each way, (rounds, 2).
    """
    import time
    from functools import partial

    import torch
    import torch.distributed as dist
    from torch import nn

    from scripts import ch8_buckets, ch8_ddp_by_hand, ch8_flat, ch8_per_parameter
    from scripts.ch8_local_sgd import GPT
    from tests.bench.apart import apart

    class Slow(nn.Module):
        """Layers whose backward sleeps."""

        def __init__(self, late: bool) -> None:
            super().__init__()
            places = [*range(1, LAYERS), 0] if late else range(LAYERS)
            made = {place: nn.Linear(128, 128) for place in places}
            self.layers = nn.ModuleList(made.values())
            self.order = [list(made).index(place) for place in range(LAYERS)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Use the layers in the order of their places."""
            for number in self.order:
                x = self.layers[number](x)
                x.register_hook(lambda grad: time.sleep(LAYER_S))
            return x

    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps, caps = {"mlp": (8, (1, 25)), "gpt": (15, (0.125,)), "slow": (3, (0.125,))}[
        kind
    ]
    theirs = nn.parallel.DistributedDataParallel
    if kind != "mlp":
        theirs = partial(theirs, bucket_cap_mb=caps[0])
    wrappers = {
        "alone": lambda net: net,
        "per_parameter": ch8_per_parameter.DDP,
        "flat": ch8_flat.DDP,
        "from_hook": partial(ch8_buckets.DDP, cap_mb=1e-6),  # a bucket for each
        "buckets": partial(ch8_buckets.DDP, cap_mb=caps[0]),
        "buckets_late": partial(ch8_buckets.DDP, cap_mb=caps[0]),
        "by_hand": partial(ch8_ddp_by_hand.DDP, caps_mb=caps),
        "torch": theirs,
        "torch_view": partial(theirs, gradient_as_bucket_view=True),
    }

    def make(way: str) -> nn.Module:
        if kind == "gpt":
            return GPT()
        if kind == "slow":
            return Slow(late=way in LATE)
        layers = nn.Linear(64, 2200), nn.ReLU(), nn.Linear(2200, 2200), nn.ReLU()
        return nn.Sequential(*layers, nn.Linear(2200, 10))

    models = apart({way: wrappers[way](make(way)) for way in ways or AGAINST})
    x = torch.randint(256, (16, 64)) if kind == "gpt" else torch.randn(64, 64)
    x = torch.randn(1, 128) if kind == "slow" else x

    def train(way: str) -> tuple[float, float]:
        model = models[way]
        optimizer = torch.optim.SGD(model.parameters(), 0.001, 0.9)
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if hasattr(model, "average"):
                model.average()
            optimizer.step()
        found = time.perf_counter() - wall, time.process_time() - cpu
        return found[0] / steps, found[1] / steps

    for way in models:
        train(way)
    found = {way: [] for way in models}
    for number in range(rounds):
        for way in list(models)[:: 1 if number % 2 else -1]:
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
        for kind in "mlp", "gpt":
            args = kind, 2 * ROUNDS + 1
            found = ranks.run(on_rank, *args, timeout=600, quiet=True)
            result[kind] = ratio(found, "by_hand", "torch", 0)
            result[kind]["cpu"] = ratio(found, "by_hand", "torch", 1)["ratio"]
            result[kind]["view"] = ratio(found, "by_hand", "torch_view", 0)
    ways = ("alone", *WAYS)
    with Ranks(2, backend=LINK) as ranks:
        found = ranks.run(on_rank, "slow", ROUNDS, ways, timeout=600, quiet=True)
    result["alone_ms"] = 1e3 * statistics.median(wall for wall, _ in found[0]["alone"])
    for way in WAYS:
        result[way] = ratio(found, way, "alone", 0)
        result[way]["ms"] = 1e3 * statistics.median(wall for wall, _ in found[0][way])
    return result


def report(results: dict) -> str:
    """Return a line for each comparison."""
    lines = [
        f"{kind}: {r['ratio']:.2f} of torch's time ({r['ratio_min']:.2f} to "
        f"{r['ratio_max']:.2f}), {r['cpu']:.2f} of its CPU time; "
        f"{r['view']['ratio']:.2f} if its gradients are views, too "
        f"({r['view']['ratio_min']:.2f} to {r['view']['ratio_max']:.2f})"
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
