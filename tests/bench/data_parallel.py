"""The GIL's part in DataParallel: a forward pass in two threads or two processes."""

import statistics

from allranks import Ranks

PAIRS = 15  # repetitions of all ways, interleaved; every other one in reverse order
# Rounds in a pair, which takes their median, so that a burst of other work doesn't
# count. Which thread gets the GIL is chance, so small operations need more rounds.
MODELS = {"small_ops": 24, "large_ops": 8}


def on_rank(kind: str, pairs: int, rounds: int) -> dict:
    """Run two shards' forward passes in every way; return seconds of each, by way.

    one: rank 0 runs both, one after the other, as the yardstick. threads: rank 0 runs
    both by MiniDataParallel's parallel_apply. processes: each rank runs one of them.
    Rank 1 waits in a barrier while rank 0 does the first two.
    """
    import statistics
    import time

    import torch
    import torch.distributed as dist
    from torch import nn

    from scripts.ch2_data_parallel import parallel_apply, replicate

    torch.set_num_threads(1)  # one core per shard, like one GPU per replica

    class SmallOps(nn.Module):
        """Many tiny operations, which keep Python busy all the time."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            for _ in range(16000):
                x = x * self.weight
            return x

    class LargeOps(nn.Module):
        """Few large operations, for which Python waits without holding the GIL."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(512))

        def forward(self, x):
            for _ in range(32):
                x = x @ self.weight
            return x

    net = SmallOps() if kind == "small_ops" else LargeOps()
    shard = torch.ones((4, 8) if kind == "small_ops" else (512, 512))
    devices = [torch.device("cpu")] * 2
    replicas = replicate(net, devices)
    shards = [((shard,), {})] * 2
    rank = dist.get_rank()

    def one() -> None:
        for replica in replicas:
            replica(shard)

    def threads() -> None:
        parallel_apply(replicas, shards, devices)

    def processes() -> None:
        replicas[0](shard)

    found = {"one": [], "threads": [], "processes": []}
    for pair in range(pairs + 1):
        seconds = {way: [] for way in found}
        for _ in range(rounds):  # in turns, so that other work slows all three alike
            for work in (one, threads, processes)[:: 1 if pair % 2 else -1]:
                dist.barrier()
                start = time.perf_counter()
                if rank == 0 or work is processes:
                    work()
                seconds[work.__name__].append(time.perf_counter() - start)
        for way, times in seconds.items():
            found[way].append(statistics.median(times))
    return {way: seconds[1:] for way, seconds in found.items()}  # the first warms up


def summarise(by_rank: list[dict]) -> dict:
    """Return medians over the pairs: milliseconds, and the speed-up over one."""
    first, second = by_rank
    times = {way: first[way] for way in ("one", "threads")}
    times["processes"] = list(map(max, first["processes"], second["processes"]))
    result = {"one_ms": 1e3 * statistics.median(times["one"])}
    for way in ("threads", "processes"):
        gains = [a / b for a, b in zip(times["one"], times[way], strict=True)]
        result[way] = statistics.median(gains)
        result[f"{way}_min"], result[f"{way}_max"] = min(gains), max(gains)
    return result


def run() -> dict:
    """Measure both kinds of model, in about four minutes."""
    results = {"pairs": PAIRS}
    with Ranks(2) as ranks:
        for kind, rounds in MODELS.items():
            by_rank = ranks.run(on_rank, kind, PAIRS, rounds, timeout=600, quiet=True)
            results[kind] = summarise(by_rank)
    return results


def report(results: dict) -> str:
    """Return each model's gain from two threads and from two processes as text."""
    lines = []
    for kind in MODELS:
        r = results[kind]
        gains = ", ".join(
            f"{way} {r[way]:.2f} ({r[f'{way}_min']:.2f} to {r[f'{way}_max']:.2f})"
            for way in ("threads", "processes")
        )
        lines.append(
            f"{kind}: two shards one after the other {r['one_ms']:.1f} ms; "
            f"times as fast in two {gains}, {results['pairs']} pairs"
        )
    return "\n".join(lines)
