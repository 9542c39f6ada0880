"""The backend "shm" against gloo and against two copies of the bytes; DDP on both."""

import statistics

from allranks import Ranks

MIB = 1 << 20
SIZES = [1, 4, 16, 64]  # MiB
ROUNDS = 15  # of all ways, by turns; every other round in reverse order
STEPS = 12  # of DDP, in each round


def on_rank(rounds: int, steps: int) -> dict:
    """Return seconds by way and MiB, (rounds,), and of DDP's steps, (rounds, steps)."""
    import copy
    import time

    import torch
    import torch.distributed as dist
    from torch import nn

    from allranks import backends
    from tests.bench.apart import apart

    groups = {"gloo": None, "shm": dist.new_group(backend=backends.register("shm"))}
    x, y = torch.ones(2, max(SIZES) * MIB // 4)

    def reduce(way: str, num: int) -> float:
        if way != "copies":
            dist.barrier()
        times = max(SIZES) * MIB // 4 // num  # of small ones many: one alone is noise
        start = time.perf_counter()
        for _ in range(times):
            if way == "copies":
                y[:num].copy_(x[:num])
                x[:num].copy_(y[:num])
            else:
                dist.all_reduce(x[:num], group=groups[way])
        took = (time.perf_counter() - start) / times
        dist.barrier()
        return took

    found = {}
    for turn in range(rounds + 1):  # the first one warms up
        for size in SIZES:
            for way in ["gloo", "shm", "copies"][:: 1 if turn % 2 else -1]:
                took = reduce(way, size * MIB // 4)
                found.setdefault((way, size), []).append(took)
    found = {key: taken[1:] for key, taken in found.items()}

    torch.manual_seed(0)
    layers = [nn.Linear(64, 2200), nn.ReLU(), nn.Linear(2200, 2200), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(2200, 10))  # 20 MB of gradients
    ddp = nn.parallel.DistributedDataParallel
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    groups = {way: {"process_group": group} for way, group in groups.items()}
    groups["group of one"] = {"process_group": alone[dist.get_rank()]}
    models = {way: ddp(copy.deepcopy(net), **group) for way, group in groups.items()}
    models["no ddp"] = net
    apart(models)
    images, labels = torch.randn(64, 64), torch.randint(10, (64,))
    for turn in range(rounds):
        for way in [*models][:: 1 if turn % 2 else -1]:
            optimizer = torch.optim.SGD(models[way].parameters(), 0.001, 0.9)
            dist.barrier()
            start = time.perf_counter()
            for step in range(steps + 2):
                if step == 2:
                    dist.barrier()
                    start = time.perf_counter()
                optimizer.zero_grad()
                nn.functional.cross_entropy(models[way](images), labels).backward()
                optimizer.step()
            dist.barrier()
            took = (time.perf_counter() - start) / steps
            found.setdefault((way, "step"), []).append(took)
    return found


def ratio(over: list[float], under: list[float]) -> dict:
    """Return the median of the rounds' ratios, and the rounds' quartiles."""
    found = sorted(a / b for a, b in zip(over, under, strict=True))
    low, _, high = statistics.quantiles(found)
    return {"ratio": statistics.median(found), "ratio_min": low, "ratio_max": high}


def run() -> dict:
    """Measure on two ranks and on four."""
    results = {"rounds": ROUNDS}
    for world_size in (2, 4):
        with Ranks(world_size) as ranks:
            by_rank = ranks.run(on_rank, ROUNDS, STEPS, timeout=600, quiet=True)
        slowest = {
            key: [max(times) for times in zip(*(f[key] for f in by_rank), strict=True)]
            for key in by_rank[0]
        }
        sizes = {}
        for size in SIZES:
            gloo, shm, copies = (
                slowest[way, size] for way in ("gloo", "shm", "copies")
            )
            sizes[f"mib_{size}"] = {
                "gloo_ms": 1e3 * statistics.median(gloo),
                "shm_ms": 1e3 * statistics.median(shm),
                "faster": ratio(gloo, shm),
                "of_two_copies": ratio(shm, copies),
            }
        steps = {way: times for (way, what), times in slowest.items() if what == "step"}
        rates = {
            name: ratio(steps["no ddp"], steps[way])
            for name, way in {
                "ddp_gloo": "gloo",
                "ddp_shm": "shm",
                "ddp_alone": "group of one",
            }.items()
        }
        results[f"ranks_{world_size}"] = sizes | rates
    return results


def report(results: dict) -> str:
    """Return a line for each size, and one for DDP."""
    lines = []
    for world_size in (2, 4):
        found = results[f"ranks_{world_size}"]
        for size in SIZES:
            r = found[f"mib_{size}"]
            lines.append(
                f"{world_size} ranks, {size:2} MiB: gloo {r['gloo_ms']:.2f} ms, "
                f"shm {r['shm_ms']:.2f} ms, {r['faster']['ratio']:.2f} times as fast; "
                f"{r['of_two_copies']['ratio']:.2f} of two copies"
            )
        of = ", ".join(
            f"{name} {found[f'ddp_{name}']['ratio']:.2f}"
            for name in ("gloo", "shm", "alone")
        )
        lines.append(f"{world_size} ranks, DDP's rate, 1 is without DDP: {of}")
    return "\n".join(lines)
