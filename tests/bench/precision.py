"""What bf16 costs on a CPU: ratios to float32, interleaved, on one thread."""

import statistics
import time

import torch

from scripts.ch10_precision import GPT

ROUNDS, REPEATS = 9, 12  # a round's figure is the least of its repeats


def run() -> dict:
    """Return the median ratio of each, with its smallest and largest round.

    matmul: a product of 512 x 512. step: forward and backward of the small GPT, under
    autocast over without it. Both in seconds of this thread, not of the clock.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    wide, nets = torch.ones(512, 512), [GPT(), GPT()]  # without autocast, and with it
    low, x = wide.bfloat16(), torch.arange(512).view(8, 64) % 256

    def step(enabled: bool) -> None:
        with torch.autocast("cpu", enabled=enabled):
            loss = nets[enabled](x).square().mean()
        loss.backward()

    ways = {
        "matmul": (lambda: low @ low, lambda: wide @ wide),
        "step": (lambda: step(True), lambda: step(False)),
    }
    found = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, pair in ways.items():
            least = [float("inf")] * 2
            for _ in range(REPEATS):
                for place, way in enumerate(pair):
                    start = time.thread_time()
                    way()
                    least[place] = min(least[place], time.thread_time() - start)
            found[name].append(least[0] / least[1])
    torch.set_num_threads(threads)
    return {
        name: {
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
        for name, ratios in found.items()
    }


def report(figures: dict) -> str:
    """Return the figures as one line each."""
    return "\n".join(f"{name}: {f['ratio']:.2f}" for name, f in figures.items())
