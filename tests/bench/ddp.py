"""DDP's step rate against two silent copies, and where the time of its step goes."""

from allranks import Ranks

PAIRS = 9  # rounds of all ways to train; every other round in reverse order
MODELS = {
    "default": ("cnn", 96, 14),  # the script's own model and batch per rank
    "large": ("mlp", 64, 30),  # 5 million parameters: 20 MB to send
    "large_batch": ("mlp", 512, 6),  # the same bytes, eight times the arithmetic
}
PARTS = ("compute", "skew", "latency", "bytes", "bookkeeping")


def on_rank(kind: str, batch_size: int, steps: int, pairs: int) -> dict:
    """Train in every way in turn; return seconds of each step, by way.

    alone: without communication, as the yardstick. ddp: DistributedDataParallel. self:
    DDP in a group of one rank. one, all: alone, but after each backward the ranks
    exchange one number, or as many as there are gradients.

    Returns:
        For each way, (pairs, steps, 2): seconds until the exchange, and of the step.
    """
    import copy
    import itertools
    import time

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader

    from scripts import ch5_ddp
    from tests.bench.apart import apart

    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    train_set, _, net = ch5_ddp.make_task(1440)
    if kind == "mlp":
        layers = [nn.Flatten(), nn.Linear(64, 2200), nn.ReLU(), nn.Linear(2200, 2200)]
        net = nn.Sequential(*layers, nn.ReLU(), nn.Linear(2200, 10))
    size = sum(p.numel() for p in net.parameters())
    loader = DataLoader(train_set, batch_size, shuffle=True, drop_last=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    ddp = nn.parallel.DistributedDataParallel
    models = {way: copy.deepcopy(net) for way in ("alone", "one", "all")}
    models["self"] = ddp(copy.deepcopy(net), process_group=groups[dist.get_rank()])
    models["ddp"] = ddp(net)
    apart(models)
    buffers = {"one": torch.zeros(1), "all": torch.zeros(size)}

    def train(way: str) -> list:
        model, buffer, seconds = models[way], buffers.get(way), []
        optimizer = torch.optim.SGD(model.parameters(), 0.001, 0.9)
        dist.barrier()
        start = time.perf_counter()
        for x, y in itertools.islice(batches, steps + 2):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            worked = time.perf_counter()
            if buffer is not None:
                dist.all_reduce(buffer)
            exchanged = time.perf_counter()
            optimizer.step()
            # The step ends here: after the exchange no rank waits for another.
            seconds.append((worked - start, exchanged - start))
            start = exchanged
        return seconds[2:]  # the first two steps warm up

    found = {way: [] for way in models}
    for pair in range(pairs):
        for way in list(models)[:: 1 if pair % 2 else -1]:
            found[way].append(train(way))
    return found | {"megabytes": 4 * size / 1e6}


def summarise(by_rank: list[dict]) -> dict:
    """Return medians over the rounds: milliseconds per step, and ratios."""
    import torch

    ways = {  # (W, pairs, steps, 2)
        way: 1e3 * torch.tensor([found[way] for found in by_rank], dtype=torch.float64)
        for way in ("alone", "one", "all", "self", "ddp")
    }
    step = {way: t[..., 1].mean(dim=(0, 2)) for way, t in ways.items()}  # (pairs,)
    rate = {way: (1 / t[..., 1].mean(dim=2)).sum(dim=0) for way, t in ways.items()}
    work = ways["one"][..., 0]
    last = {way: ways[way][..., 0].amax(dim=0).mean(dim=1) for way in ("one", "all")}
    exchange = {way: step[way] - last[way] for way in last}  # after the last arrival
    parts = {
        "compute": step["alone"],
        "skew": last["one"] - work.mean(dim=(0, 2)),  # last rank minus the mean
        "latency": exchange["one"],
        "bytes": exchange["all"] - exchange["one"],
        "bookkeeping": step["self"] - step["alone"],
    }
    result = {f"{part}_ms": t.median().item() for part, t in parts.items()}
    result["explained"] = sum(result.values()) / step["ddp"].median().item()
    ratio = rate["ddp"] / rate["alone"]
    return result | {
        "step_ms": step["ddp"].median().item(),
        "ratio": ratio.median().item(),
        "ratio_min": ratio.min().item(),
        "ratio_max": ratio.max().item(),
        "megabytes": by_rank[0]["megabytes"],
    }


def run() -> dict:
    """Measure each model on two ranks."""
    results = {"pairs": PAIRS}
    with Ranks(2) as ranks:
        for name, (kind, batch_size, steps) in MODELS.items():
            args = kind, batch_size, steps, PAIRS
            by_rank = ranks.run(on_rank, *args, timeout=600, quiet=True)
            results[name] = summarise(by_rank) | {"batch_size": batch_size}
    return results


def report(results: dict) -> str:
    """Return two lines per model: the ratio, then where the time of its step goes."""
    lines = []
    for name in MODELS:
        r = results[name]
        split = " + ".join(f"{part} {r[f'{part}_ms']:.2f}" for part in PARTS)
        lines += [
            f"{name}: {r['megabytes']:.1f} MB, batch {r['batch_size']} per rank: "
            f"{r['ratio']:.2f} of two silent copies "
            f"({r['ratio_min']:.2f} to {r['ratio_max']:.2f}, {results['pairs']} pairs)",
            f"    {split} ms = {r['explained']:.2f} of a step of {r['step_ms']:.2f} ms",
        ]
    return "\n".join(lines)
