"""What determinism costs on a CPU: ratios to the same without it, interleaved.

Only ``tree`` looks at the clock, since ranks wait for each other. The others count the
seconds of their threads, which other programs disturb little.
"""

import statistics
import time
from collections.abc import Callable

import torch

from allranks import Ranks
from scripts import ch10_determinism as chapter
from scripts.ch10_precision import GPT

ROUNDS, REPEATS = 9, 12  # a round's figure is the median of its repeats
NUMBERS = 1 << 20  # in what is written, or added up
WORLD_SIZE = 4  # of the tree


class Text(GPT):
    """The small GPT, whose logits have the shape that a loss wants."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map bytes (B, T) to logits (B, 256, T)."""
        return super().forward(x).mT


def middle(ways: list[Callable], clock: Callable) -> list[float]:
    """Return each way's median time of some repeats, by turns.

    The least would be too little: while another thread runs, its clock may lag.
    """
    found = [[] for _ in ways]
    for _ in range(REPEATS):
        for times, way in zip(found, ways, strict=True):
            time.sleep(0.02)  # the last way's second thread spins for a while
            start = clock()
            way()
            times.append(clock() - start)
    return [statistics.median(times) for times in found]


def alone() -> dict[str, list[float]]:
    """Return each round's ratios of what a single process pays, by name."""
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(NUMBERS, generator=draw)
    slots = torch.randint(2**16, (NUMBERS,), generator=draw)
    half = torch.arange(NUMBERS) // (NUMBERS // 2)  # of which of two threads
    own = slots // 2 + half * 2**15  # each thread has places of its own
    nets = {mode: Text() for mode in (True, False)}
    x = torch.randint(256, (16, 64), generator=draw)

    def put(mode: bool, slots: torch.Tensor = slots) -> None:
        torch.use_deterministic_algorithms(mode)
        bins[mode].index_put_((slots,), values, accumulate=True)

    def apart(mode: bool) -> None:
        put(mode, own)

    def single(mode: bool) -> None:
        put(mode)

    def unfilled(mode: bool) -> None:
        torch.utils.deterministic.fill_uninitialized_memory = False
        empty(mode)
        torch.utils.deterministic.fill_uninitialized_memory = True

    def empty(mode: bool) -> None:
        torch.use_deterministic_algorithms(mode)
        torch.empty(NUMBERS).copy_(values)

    def step(mode: bool) -> None:
        torch.use_deterministic_algorithms(mode)
        chapter.lane_gradients(nets[mode], x, x, 1)

    def lanes(mode: bool) -> None:
        torch.use_deterministic_algorithms(False)
        chapter.lane_gradients(nets[mode], x, x, 8 if mode else 1)

    threads, found = torch.get_num_threads(), {}
    for _ in range(ROUNDS):
        for way in put, apart, single, empty, unfilled, step, lanes:
            shared = way in (put, apart)
            bins = {mode: torch.zeros(2**16) for mode in nets}
            torch.set_num_threads(2 if shared else 1)
            clock = time.process_time if shared else time.thread_time
            pair = [lambda way=way: way(True), lambda way=way: way(False)]
            with_it, without = middle(pair, clock)
            found.setdefault(way.__name__, []).append(with_it / without)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    return found


def on_rank(rounds: int, num: int) -> list[float]:
    """Return each round's ratio of the tree's time to all_reduce's."""
    import time

    import torch
    import torch.distributed as dist

    from scripts.ch10_determinism import halving

    x, ratios = torch.ones(num), []
    for _ in range(rounds + 1):  # the first one warms up
        times = {halving: [], dist.all_reduce: []}
        for _ in range(6):
            for way, found in times.items():
                dist.barrier()
                start = time.perf_counter()
                way(x)
                dist.barrier()  # until the last one is done
                found.append(time.perf_counter() - start)
                x.fill_(1.0)
        ratios.append(min(times[halving]) / min(times[dist.all_reduce]))
    return ratios[1:]


def run() -> dict:
    """Return the median ratio of each, and its rounds' quartiles.

    put: 2^20 numbers added into 2^16 places; there are two threads, and all their time
    counts. apart: the same, but no place is of both threads. single: on one thread.
    empty: memory that is made and then written. unfilled: the same, if deterministic
    algorithms do not fill it first. step: the small GPT's gradient.
    lanes: the same in eight passes of two samples, over one pass of 16. tree: 4 MiB
    added up by four ranks.
    """
    found = alone()
    with Ranks(WORLD_SIZE) as ranks:
        by_rank = ranks.run(on_rank, ROUNDS, NUMBERS, timeout=300, quiet=True)
    found["tree"] = by_rank[0]
    figures = {}
    for name, ratios in found.items():
        low, _, high = statistics.quantiles(ratios)
        ratio = statistics.median(ratios)
        figures[name] = {"ratio": ratio, "ratio_min": low, "ratio_max": high}
    return figures


def report(figures: dict) -> str:
    """Return the figures as one line each."""
    return "\n".join(
        f"{name}: {f['ratio']:.2f} ({f['ratio_min']:.2f} to {f['ratio_max']:.2f})"
        for name, f in figures.items()
    )
