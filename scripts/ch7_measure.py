"""Chapter 7 - Measure your machine: what each collective costs on it.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch7_measure.py
"""

import job  # first, since importing torch takes seconds

import os
import time

import torch
import torch.distributed as dist
from sklearn.linear_model import LinearRegression

CALLS = {  # x and y hold n bytes; mine is this rank's part of them
    "all_reduce": lambda x, y, mine: dist.all_reduce(x),
    "broadcast": lambda x, y, mine: dist.broadcast(x, 0),
    "all_gather": lambda x, y, mine: GATHER(y, x[mine]),
    "reduce_scatter": lambda x, y, mine: SCATTER(y[mine], x),
    "all_to_all": lambda x, y, mine: dist.all_to_all_single(y, x),
}
# Two have other names since torch 2.13.
GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def measure(sizes: list[int], repeats: int, device) -> torch.Tensor:
    """Return quantiles of the slowest rank's seconds: (2, CALLS, sizes)."""
    seconds = torch.zeros(len(CALLS), len(sizes), repeats + 1).double()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    memory = torch.ones(2, max(sizes) // 4, device=device)
    draw = torch.Generator().manual_seed(0)  # the same order on all ranks
    for turn in range(repeats + 1):  # all by turns: what else runs hits all
        for cell in torch.randperm(len(CALLS) * len(sizes), generator=draw):
            row, column = divmod(cell.item(), len(sizes))
            part = sizes[column] // 4 // world_size
            x, y = memory[:, : part * world_size]
            mine, run = slice(part * rank, part * (rank + 1)), [*CALLS][row]
            times = min(16, max(1, 2**18 // sizes[column]))
            dist.barrier()
            start = time.perf_counter()
            for _ in range(times):  # a short one, too often for the clock
                CALLS[run](x, y, mine)
            float(x[0] + y[0])  # now a GPU has done it, too
            seconds[row, column, turn] = (time.perf_counter() - start) / times
    seconds = seconds[..., 1:].contiguous().to(device)  # without a warm-up
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.cpu().quantile(torch.tensor([0.1, 0.5]).double(), 2)


def fit(n: torch.Tensor, t: torch.Tensor) -> tuple:
    """Return (cut, line, line): an (alpha, beta) for n below it and above."""
    model = LinearRegression(fit_intercept=False, positive=True)
    terms, ones, found = torch.stack([1 / t, n / t], 1), torch.ones_like(t), []
    for cut in range(3, len(n) - 2):
        parts = slice(cut), slice(cut, None)
        lines = [model.fit(terms[p], ones[p]).coef_.tolist() for p in parts]
        pieces = (n[cut].item(), *lines)
        found.append(((predict(pieces, n) / t - 1).abs().mean(), pieces))
    return min(found)[1]  # the one with the least relative errors


def predict(pieces: tuple, n: torch.Tensor) -> torch.Tensor:
    """Return the seconds that n bytes should take."""
    cut, (alpha, beta), (a, b) = pieces
    return torch.where(n < cut, alpha + beta * n, a + b * n)


def describe(name: str, n: torch.Tensor, t: torch.Tensor) -> list[str]:
    """Fit every other size, and try the fit on those in between."""
    size, (cut, *two) = dist.get_world_size(), fit(n[::2], t[::2])
    wrong = predict((cut, *two), n[1::2]) / t[1::2] - 1
    worst, usual = wrong.abs().argmax(), wrong.abs().median()
    trips = {"all_reduce": 2, "broadcast": size / (size - 1)}.get(name, 1)
    bus = trips * (size - 1) / size * float(n[-1] / t[-1]) / 1e9
    lines = [f"{1e6 * a:.0f} us + {1e12 * b:.0f} us per MB" for a, b in two]
    where = f"at worst {wrong[worst]:+.0%} at {n[2 * worst + 1] / 1000:.0f} kB"
    line = f"{name}: {lines[0]} below {cut / 1000:.0f} kB, then {lines[1]}"
    return [line, f"  wrong by {usual:.0%}, {where}; bus {bus:.2f} GB/s"]


def draw(n: torch.Tensor, times: torch.Tensor) -> list[str]:
    """Draw time against bytes, both logarithmic, with the spread."""
    lines = ["o is the 10th percentile, - reaches to the median; logarithmic"]
    low, high = times.min().log2(), times.max().log2()
    for size, row in zip(n.tolist(), times.T, strict=True):
        here, last = (19 * (row.log2() - low) / (high - low)).int()
        text = " " * here + "o" + "-" * (last - here)
        lines.append(f"{size / 1000:5.0f} kB {1e3 * row[0]:6.2f} ms {text}")
    return lines


def as_ring(n: torch.Tensor, t: torch.Tensor, half: torch.Tensor) -> list[str]:
    """Find a ring's alpha and B; predict half of an all_reduce with them."""
    size, (_, (a, _), (_, b)) = dist.get_world_size(), fit(n, t)
    alpha, beta = a / (2 * size - 2), max(b, 1e-15) * size / (2 * size - 2)
    ms = 1e3 * (size - 1) * (alpha + n[-1] / size * beta)
    so = f"  so all_gather {ms:.1f} ms; it took {1e3 * half[-1]:.1f} ms"
    return [f"ring: alpha {1e6 * alpha:.0f} us, B {1e-9 / beta:.2f} GB/s", so]


def compare(args, rank: int, world_size: int, device) -> None:
    """Measure all collectives, fit every other size, and predict the rest."""
    sizes = [1000 << k for k in range(args.largest_kb.bit_length())]
    if world_size < 2 or len(sizes) < 12:
        why = f"{world_size} ranks, {len(sizes)} sizes"
        job.refuse(f"{why}: 2 and 12 are needed")
    n = torch.tensor(sizes, dtype=torch.double)
    times = measure(sizes, args.repeats, device)  # fast and median ones
    apart = (times[1] / times[0] - 1).median(1).values.max()
    if apart > args.most_spread / 100:
        why = f"equal calls {apart:.0%} apart, load {os.getloadavg()[0]:.1f}"
        job.refuse(f"{why}: stop what runs, or allow more with --most-spread")
    for row, name in enumerate(CALLS if rank == 0 else ()):
        lines = describe(name, n, times[0, row])
        if row == 0:
            lines += draw(n, times[:, 0]) + as_ring(n, *times[0, [0, 2]])
        for line in lines:
            job.say(line)


def parse_args(argv: list[str] | None = None):
    """Read the flags; --most-spread is in percent."""
    numbers = {"largest_kb": 16384, "repeats": 25, "most_spread": 60}
    return job.Flags(__doc__, **numbers).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        compare(args, *place)
