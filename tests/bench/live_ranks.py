"""How fast live ranks start, answer, speak and fail; and the same in ipyparallel.

Speaking is measured from a rank's print to the moment at which a screen is told of it.
"""

import contextlib
import io
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from allranks import Ranks, RanksError
from allranks.live.screen import Screen

PAIRS = 5  # runs of live ranks and of ipyparallel, interleaved

FIRST = """
import time
from allranks import Ranks
start = time.perf_counter()
ranks = Ranks(4)
print(time.perf_counter() - start)
ranks.close()
"""


def three_ddp_steps() -> float:
    """Train three DDP steps on random data; return the last loss."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    x = torch.randn(32, 64) + dist.get_rank()
    for _ in range(3):
        loss = ddp_model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = loss.detach()
    dist.all_reduce(total)
    return total.item()


def join(rank: int, store: str) -> None:
    """Form the process group in ipyparallel; live ranks have one from the start."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    method = f"file://{store}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=4)


def all_reduce() -> None:
    """Sum one number over all ranks."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1))


def with_live_ranks() -> float:
    """Return the seconds for a start, an all_reduce, three DDP steps and the stop."""
    start = time.perf_counter()
    with Ranks(4) as ranks:
        ranks.run(all_reduce)
        losses = ranks.run(three_ddp_steps)
    assert len(set(losses)) == 1
    return time.perf_counter() - start


def with_ipyparallel() -> float:
    """Return the seconds for the same work in ipyparallel."""
    import ipyparallel

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # engines import this file
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        cluster = ipyparallel.Cluster(n=4, log_level=logging.ERROR)
        client = cluster.start_and_connect_sync(activate=False)
        try:
            engines = client[:]
            engines.map_sync(join, range(4), [f"{folder}/store"] * 4)
            engines.apply_sync(all_reduce)
            losses = engines.apply_sync(three_ddp_steps)
            assert len(set(losses)) == 1
        finally:
            client.close()
            cluster.stop_cluster_sync()
        return time.perf_counter() - start


def seconds(work, *args, **kwargs) -> float:
    """Return the seconds of one call, even if it fails."""
    start = time.perf_counter()
    with contextlib.suppress(RanksError):
        work(*args, **kwargs)
    return time.perf_counter() - start


class Stopwatch(Screen):
    """A screen that notes how old each printed line is when it arrives.

    A line is the time at which it was printed, on the clock of all processes.
    """

    live = True

    def __init__(self) -> None:
        self.lines, self.ages = 0, []

    def update(self, transcripts, status: str = "") -> None:
        """Note the age of the lines that are new."""
        tail = transcripts[0].tail(100)
        now = time.monotonic()
        self.ages += [now - float(line) for line in tail.lines[self.lines :]]
        self.lines = len(tail.lines)

    def finish(self, transcripts) -> None:
        """Show nothing."""


def until_shown(ranks: Ranks) -> list[float]:
    """Return the seconds from each of 20 prints until a screen is told."""
    watch = Stopwatch()
    cell = "import time\nfor _ in range(20): print(time.monotonic()); time.sleep(0.07)"
    ranks.run_cell(cell, "cell", screen=watch)
    return watch.ages


def proportional_mib(world_size: int) -> float:
    """Return the proportional memory of ranks and all that serves them, in MiB."""
    with Ranks(world_size) as ranks:
        ranks.run(
            "torch.nn.Linear(8, 8)(torch.ones(8)).sum().backward(); dist.barrier()"
        )
        family = psutil.Process().children(recursive=True)
        return sum(process.memory_full_info().pss for process in family) / 2**20


def run() -> dict:
    """Measure everything, which takes a few minutes."""
    first = [
        float(subprocess.check_output([sys.executable, "-c", FIRST])) for _ in range(3)
    ]
    figures = {"first_start_s": statistics.median(first)}
    Ranks(1).close()
    for world_size in (4, 8):
        times = []
        for _ in range(15):
            start = time.perf_counter()
            ranks = Ranks(world_size)
            times.append(time.perf_counter() - start)
            ranks.close()
        figures[f"start_{world_size}_s"] = statistics.median(times)
        figures[f"start_{world_size}_max_s"] = max(times)
    if sys.platform == "linux":
        four, eight = proportional_mib(4), proportional_mib(8)
        figures |= {"four_ranks_mib": four, "further_rank_mib": (eight - four) / 4}
    with Ranks(4) as ranks, contextlib.redirect_stdout(io.StringIO()):
        ages = until_shown(ranks)
        figures |= {"shown_s": statistics.median(ages), "shown_max_s": max(ages)}
        cells = [
            seconds(ranks.run_cell, "rank", "cell", quiet=True) for _ in range(200)
        ]
        figures["cell_ms"] = 1e3 * statistics.median(cells)
        failures, hangs = [], []
        for _ in range(7):
            ranks.run("1")  # start fresh ranks before the clock starts
            cell = "if rank == 1: raise ValueError\ndist.barrier()"
            failures.append(seconds(ranks.run, cell))
            ranks.run("1")
            cell = "if rank: dist.barrier()"
            hangs.append(seconds(ranks.run, cell, timeout=1) - 1)
        figures["failure_s"] = statistics.median(failures)
        figures["failure_max_s"] = max(failures)
        figures["hang_over_timeout_s"] = statistics.median(hangs)
        figures["hang_over_timeout_max_s"] = max(hangs)
    live, ipp = [], []
    for _ in range(PAIRS):
        live.append(with_live_ranks())
        ipp.append(with_ipyparallel())
    ratios = sorted(b / a for a, b in zip(live, ipp, strict=True))
    return figures | {
        "work_s": statistics.median(live),
        "ipyparallel_s": statistics.median(ipp),
        "ipyparallel_ratio": statistics.median(ratios),
        "ipyparallel_ratio_min": ratios[0],
        "ipyparallel_ratio_max": ratios[-1],
    }


def report(f: dict) -> str:
    """Return the figures as text, each beside its target."""
    return "\n".join(
        [
            f"first start of 4 ranks        {f['first_start_s']:.2f} s (target 2.5)",
            f"4 ranks ready                 {f['start_4_s']:.3f} s, at most "
            f"{f['start_4_max_s']:.3f} (target 0.1)",
            f"8 ranks ready                 {f['start_8_s']:.3f} s, at most "
            f"{f['start_8_max_s']:.3f} (target 0.15)",
            f"a trivial cell                {f['cell_ms']:.2f} ms (target 1)",
            f"a print, until shown          {f['shown_s']:.2f} s, at most "
            f"{f['shown_max_s']:.2f} (target 0.2)",
            f"each further rank             {f.get('further_rank_mib', 0):.0f} MiB, "
            "proportional (target 20)",
            f"a failure, until reported     {f['failure_s']:.2f} s, at most "
            f"{f['failure_max_s']:.2f} (target 0.4)",
            f"a hang, beyond its timeout    {f['hang_over_timeout_s']:.2f} s, at most "
            f"{f['hang_over_timeout_max_s']:.2f} (target 0.5)",
            f"start, all_reduce, 3 DDP steps, stop: {f['work_s']:.2f} s; "
            f"ipyparallel {f['ipyparallel_s']:.1f} s, "
            f"{f['ipyparallel_ratio']:.0f} times as long "
            f"({f['ipyparallel_ratio_min']:.0f} to {f['ipyparallel_ratio_max']:.0f})",
        ]
    )
