"""Chapter 7 - Measure your machine: what each collective costs on it.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch7_measure.py
"""

import argparse
import os
import re
import signal
import subprocess
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
SPREAD = torch.tensor([0.1, 0.25, 0.5]).double()  # least, fit, most


def measure(sizes: list[int], repeats: int, device) -> torch.Tensor:
    """Return the slowest rank's seconds (collectives, sizes, repeats)."""
    seconds = torch.zeros(len(CALLS), len(sizes), repeats + 1)
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
    return seconds.cpu()


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


def describe(name: str, n: torch.Tensor, t: torch.Tensor) -> str:
    """Fit every other size, and try the fit on those in between."""
    size, pieces = dist.get_world_size(), fit(n[::2], t[::2])
    wrong = (predict(pieces, n[1::2]) / t[1::2] - 1).abs()
    error = f"wrong by {wrong.median():.0%}, at worst {wrong.max():.0%}"
    trips = {"all_reduce": 2, "broadcast": size / (size - 1)}.get(name, 1)
    bus = trips * (size - 1) / size * float(n[-1] / t[-1]) / 1e9
    at, *two = pieces
    lines = [f"{1e6 * a:.0f} us + {1e12 * b:.0f} us per MB" for a, b in two]
    cut = f" below {at / 1024:.0f} KiB, then "
    return f"{name}: {cut.join(lines)}; bus {bus:.2f} GB/s; {error}"


def draw(n: torch.Tensor, times: torch.Tensor) -> None:
    """Print time against bytes, both logarithmic, with the spread."""
    low, high = times.min().log2(), times.max().log2()
    for size, row in zip(n.tolist(), times.T, strict=True):
        first, here, last = (59 * (row.log2() - low) / (high - low)).int()
        text = " " * first + "-" * (here - first) + "o" + "-" * (last - here)
        say(f"{size / 1024:6.0f} KiB {text:60} {1e3 * row[1]:.3f} ms")


def others() -> str:
    """Say how loaded this machine is, and by which processes but ours."""
    listed = subprocess.check_output(["ps", "-Ao", "pcpu,pid,ppid,comm"])
    rows = [row.split(None, 3) for row in listed.decode().splitlines()[1:]]
    rows = [row for row in rows if str(os.getppid()) not in row[1:3]]
    share, pid, _, name = max(rows, key=lambda row: float(row[0]))
    return f"load {os.getloadavg()[0]:.1f}; {name} ({pid}) takes {share} %"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    numbers = {"--largest-kib": 16384, "--repeats": 25, "--most-spread": 60}
    for flag, default in numbers.items():
        parser.add_argument(flag, type=int, default=default)
    return in_range(parser.parse_args(argv))


def main() -> None:
    """Measure all collectives, fit every other size, and predict the rest."""
    args = parse_args()
    rank, world_size, device = setup(args)
    sizes = [1024 << k for k in range(args.largest_kib.bit_length())]
    if world_size < 2 or len(sizes) < 12:
        refuse(f"{world_size} ranks, {len(sizes)} sizes: 2 and 12 are needed")
    n = torch.tensor(sizes, dtype=torch.double)
    seconds = measure(sizes, args.repeats, device).double()
    times = seconds.quantile(SPREAD, dim=2)  # (3, collectives, sizes)
    apart = ((times[2] - times[0]) / times[1]).median(1).values.max()
    if apart > args.most_spread / 100:
        why = f"equal calls are {apart:.0%} apart: {others()}"
        refuse(f"{why}: stop that, or allow more with --most-spread")
    for row, name in enumerate(CALLS if rank == 0 else ()):
        say(describe(name, n, times[1, row]))
        draw(n, times[:, row]) if name == "all_reduce" else None
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
    most = {"seed": 2**63 - 1, "samples": 1440, "nproc_per_node": 64}
    for name, value in vars(args).items():
        flag, low = "--" + name.replace("_", "-"), int(name != "seed")
        high = most.get(name, 65536)
        if type(value) is int and not low <= value <= high:
            refuse(f"{flag} {value}: must be {low} to {high}")
        if type(value) is float and not 0 < value < float("inf"):
            refuse(f"{flag} {value}: must be above 0 and finite")
    return args


def brief(kind, error, trace) -> None:
    """Print a traceback, or one line if another rank was the first to die."""
    if re.search("closed by peer|reset by peer|Broken pipe", str(error)):
        why = "its connection to another rank is closed; look there"
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
