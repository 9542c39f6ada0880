"""What allranks.guard costs: a check, its calls, and steps with it and without."""

import statistics

from allranks import Ranks

EVERY = 100  # the guard's default
BLOCK = 20  # steps; few, because the speed of a shared machine drifts
MODELS = {  # kind, batch per rank, pairs of blocks: a multiple of EVERY / BLOCK
    "small": ("cnn", 96, 15),  # the script's own model and batch
    "large": ("mlp", 64, 10),  # 5 million parameters, with AdamW
}


def on_rank(kind: str, batch_size: int, pairs: int, every: int, block: int) -> dict:
    """Train under DDP with and without the guard; return seconds.

    checks: of single steps, alternately without a check and with one. blocks: of
    ``block`` steps each, in pairs without the guard and with it, in alternating order.
    inside: the part of the blocks with the guard that its calls took.
    """
    import copy
    import itertools
    import time

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler

    from allranks.guard import Guard
    from scripts import ch5_ddp
    from tests.bench.apart import apart

    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    train_set, _, net = ch5_ddp.make_task(1440)
    if kind == "mlp":
        layers = [nn.Flatten(), nn.Linear(64, 2200), nn.ReLU(), nn.Linear(2200, 2200)]
        net = nn.Sequential(*layers, nn.ReLU(), nn.Linear(2200, 10))
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size, sampler=sampler, drop_last=True)
    wrap = nn.parallel.DistributedDataParallel
    models = apart({way: wrap(copy.deepcopy(net)) for way in ("guarded", "plain")})
    ddp, plain = models.values()  # the guard's hooks are on one of them only
    optimizers = {m: torch.optim.AdamW(m.parameters(), 1e-4) for m in (ddp, plain)}

    epochs = itertools.count(1)  # each epoch has an order of its own

    def batches(watch):
        for epoch in epochs:
            sampler.set_epoch(epoch)
            yield from watch.epoch(loader, epoch) if watch else loader

    inside = []

    def train(steps: int, watch) -> list[float]:
        feed, seconds = feeds[watch], []
        model = ddp if watch else plain
        optimizer = optimizers[model]
        dist.barrier()
        start = time.perf_counter()
        for x, y in itertools.islice(feed, steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            if watch:
                before = time.perf_counter()
                watch.step()
                inside.append(time.perf_counter() - before)
            optimizer.step()
            now = time.perf_counter()
            seconds.append(now - start)
            start = now
        return seconds

    feeds = {None: batches(None)}
    train(5, None)
    with Guard(ddp, optimizers[ddp], every=2) as watch:
        watch.steps = 2 * every  # the guard checks the first steps more often
        feeds[watch] = batches(watch)
        checks = train(60, watch)[2:]
    blocks = []
    inside.clear()
    with Guard(ddp, optimizers[ddp], every=every) as watch:
        watch.steps = 2 * every
        feeds[watch] = batches(watch)
        for pair in range(pairs):
            ways = (None, watch)[:: 1 if pair % 2 else -1]
            found = {way: sum(train(block, way)) for way in ways}
            blocks.append((found[None], found[watch]))
    size = sum(p.numel() for p in net.parameters())
    facts = {"checks": checks, "blocks": blocks, "inside": sum(inside)}
    return facts | {"megabytes": 4 * size / 1e6}


def summarise(by_rank: list[dict], every: int) -> dict:
    """Return medians: milliseconds of a step and of a check, and the guard's share."""
    checks = [max(times) for times in zip(*(r["checks"] for r in by_rank), strict=True)]
    # Steps alternate: each check is compared with the step before it.
    extra = [b - a for a, b in zip(checks[::2], checks[1::2], strict=True)]
    plain = statistics.median(checks[::2])
    ratios = [
        sum(w for _, w in blocks) / sum(b for b, _ in blocks)
        for blocks in zip(*(r["blocks"] for r in by_rank), strict=True)
    ]
    check = statistics.median(extra)
    plain_s, guarded_s = (
        max(sum(pair[way] for pair in r["blocks"]) for r in by_rank) for way in (0, 1)
    )
    return {
        "megabytes": by_rank[0]["megabytes"],
        "read_megabytes": 8 * by_rank[0]["megabytes"],  # see the guard's page
        "step_ms": 1e3 * plain,
        "check_ms": 1e3 * check,
        "percent": 100 * check / every / plain,
        "inside_percent": 100 * max(r["inside"] for r in by_rank) / plain_s,
        "ratio": guarded_s / plain_s,
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "pairs": len(ratios),
    }


def run() -> dict:
    """Measure both models on two ranks, in less than a minute."""
    results = {"every": EVERY}
    with Ranks(2) as ranks:
        for name, (kind, batch_size, pairs) in MODELS.items():
            args = kind, batch_size, pairs, EVERY, BLOCK
            by_rank = ranks.run(on_rank, *args, timeout=300, quiet=True)
            results[name] = summarise(by_rank, EVERY)
    return results


def report(results: dict) -> str:
    """Return one line per model."""
    return "\n".join(
        f"{name}: {r['megabytes']:.1f} MB, a step of {r['step_ms']:.1f} ms; a check "
        f"costs {r['check_ms']:.1f} ms more, {r['percent']:.2f} % every "
        f"{results['every']} steps; its calls take {r['inside_percent']:.2f} %; all "
        f"steps with it take {r['ratio']:.3f} of those without ({r['ratio_min']:.3f} "
        f"to {r['ratio_max']:.3f}, {r['pairs']} pairs)"
        for name, r in ((name, results[name]) for name in MODELS)
    )
