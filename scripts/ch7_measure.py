"""Chapter 7 - Measure your machine: what each collective costs on it.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch7_measure.py
"""

import argparse
import os
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn


def watch(parent: int) -> None:
    """End this rank when its launcher has died, even of SIGKILL.

    It asks once a second: prctl watches only one thread of the launcher's.
    """

    def look():
        while os.getppid() == parent:
            time.sleep(1)
        with suppress(OSError):
            os.write(2, b"ended: the launcher of this rank is gone\n")
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":  # before the slow imports
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # no traceback
    if "TORCHELASTIC_USE_AGENT_STORE" in os.environ:  # started by torchrun
        watch(os.getppid())

import torch
import torch.distributed as dist
from sklearn.linear_model import LinearRegression


def setup(args: argparse.Namespace) -> tuple[int, int, torch.device]:
    """Join the group torchrun describes: (rank, world_size, device)."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit(__doc__)  # started with python, not torchrun
    timeout = time_limit()
    sys.excepthook = brief
    device = torch.device("cpu")
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu is not None and gpu.type != "mps":  # a Mac's GPU has no collectives
        num_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
        if num_ranks > (num_gpus := torch.accelerator.device_count()):
            why = f"{num_ranks} ranks on this machine, but {num_gpus} GPUs"
            refuse(f"{why}: lower --nproc-per-node to {num_gpus}")
        device = torch.device(gpu.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        timeout=timeout,
        device_id=None if device.type == "cpu" else device,
    )
    agree(args)
    return dist.get_rank(), dist.get_world_size(), device


def say(text: str) -> None:
    """Print one line in one write, so that two ranks' lines never merge."""
    put(f"[rank {dist.get_rank()}/{dist.get_world_size()}] {text}")


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


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    numbers = {"--largest-kb": 16384, "--repeats": 25, "--most-spread": 60}
    for flag, default in numbers.items():
        parser.add_argument(flag, type=int, default=default)
    return in_range(parser.parse_args(argv))


def main() -> None:
    """Measure all collectives, fit every other size, and predict the rest."""
    args = parse_args()
    rank, world_size, device = setup(args)
    sizes = [1000 << k for k in range(args.largest_kb.bit_length())]
    if world_size < 2 or len(sizes) < 12:
        refuse(f"{world_size} ranks, {len(sizes)} sizes: 2 and 12 are needed")
    n = torch.tensor(sizes, dtype=torch.double)
    times = measure(sizes, args.repeats, device)  # fast and median ones
    apart = (times[1] / times[0] - 1).median(1).values.max()
    if apart > args.most_spread / 100:
        why = f"equal calls {apart:.0%} apart, load {os.getloadavg()[0]:.1f}"
        refuse(f"{why}: stop what runs, or allow more with --most-spread")
    for row, name in enumerate(CALLS if rank == 0 else ()):
        lines = describe(name, n, times[0, row])
        if row == 0:
            lines += draw(n, times[:, 0]) + as_ring(n, *times[0, [0, 2]])
        for line in lines:
            say(line)
    dist.destroy_process_group()


# The rest stands in every script: a job that cannot go on ends in a sentence.
def refuse(why: str) -> NoReturn:
    """End all ranks with one sentence: all found the same fault."""
    started = "TORCHELASTIC_USE_AGENT_STORE" in os.environ  # by a launcher
    if started and os.environ.get("LOCAL_RANK") != "0":
        time.sleep(9)  # rank 0 says it; then the launcher ends this rank
    if started and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # or exit may abort
    raise SystemExit(why)


def put(line: str) -> None:
    """Print a line in one write; end with a sentence if stdout fails."""
    try:
        print(f"{line}\n", end="", flush=True)
    except OSError as error:  # a full disk, or `| head`, which left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # no second try at exit
        why = f"cannot print to stdout: {error.strerror}"
        refuse(f"{why}: ended")


def in_range(args: argparse.Namespace) -> argparse.Namespace:
    """Refuse impossible numbers before anything is started."""
    most = {"seed": 2**32 - 1, "samples": 1440, "nproc_per_node": 64}
    most |= {"workers": 64, "numbers": 64, "width": 8192, "columns": 16384}
    for name, value in vars(args).items():
        flag, low = "--" + name.replace("_", "-"), int(name != "seed")
        high = most.get(name, 65536)
        if type(value) is int and not low <= value <= high:
            refuse(f"{flag} {value}: must be {low} to {high}")
        if type(value) is float and not 1e-30 <= value <= 1e30:
            refuse(f"{flag} {value}: must be 1e-30 to 1e+30")
    return args


def brief(kind, error, trace) -> None:
    """Print a traceback, or one line if another process was first to die."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or this may be interrupted
    why, both = "", (error, error.__context__)  # what it came of may tell it
    pipe = any(isinstance(e, ConnectionError | EOFError) for e in both)
    if pipe or any("DataLoader worker (pid" in str(e) for e in both):
        why = "a DataLoader worker was killed, often for want of memory"
    elif re.search("closed by peer|reset by peer|Broken pipe", str(error)):
        why = "its connection to another rank is closed; look there"
    if why:
        sys.stderr.write(f"[rank {os.environ['RANK']}] ended: {why}\n")
    else:
        sys.__excepthook__(kind, error, trace)


def time_limit() -> timedelta:
    """Check what a launcher sets; return what a collective may take."""
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
    for name in *names, "MASTER_PORT", "MASTER_ADDR":
        value = os.environ.get(name, "")
        if not (value if name == "MASTER_ADDR" else value.isdecimal()):
            why = f"{name} is {value!r}, but LOCAL_RANK is set"
            refuse(f"{why}: unset it and start with torchrun, or set all")
    for this, all_ in names[:2], names[2:]:
        if (rank := int(os.environ[this])) >= (num := int(os.environ[all_])):
            refuse(f"{this} {rank}: {all_} is {num}, so it ends at {num - 1}")
    text = os.environ.get("GROUP_TIMEOUT_S", "300")
    try:
        if not 0 < float(text) < 1e7:
            raise ValueError
    except ValueError:
        refuse(f"GROUP_TIMEOUT_S {text!r}: must be seconds, above 0")
    return timedelta(seconds=float(text))


def agree(args: argparse.Namespace) -> None:
    """End all ranks if their flags differ: so would what they train."""
    flags = [{}] * dist.get_world_size()
    dist.all_gather_object(flags, vars(args))
    for name in flags[0]:
        ranks = {}
        for rank, theirs in enumerate(flags):
            ranks.setdefault(repr(theirs.get(name)), []).append(rank)
        if len(ranks) > 1:
            found = [f"{value} on {who}" for value, who in ranks.items()]
            why = f"--{name.replace('_', '-')} differs between ranks"
            refuse(f"{why}: {', '.join(found)}: give all nodes the same")


if __name__ == "__main__":
    main()
