"""Chapter 9 - The loader is a queue: who waits, it or the model.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch9_loader.py
"""

import argparse
import os
import pickle
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
from torch.utils.data import DataLoader, Dataset


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


class Slow(Dataset):
    """Batches that take their time: to read, or to decode, or now and then."""

    lock = threading.Lock()  # of a library, say; nobody has it at an import

    def __init__(self, kind: str, load_s: float, num: int):
        self.kind, self.load_s, self.num = kind, load_s, num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, i: int) -> tuple:
        if self.kind == "decode":  # computes for so long
            end = time.thread_time() + self.load_s
            while time.thread_time() < end:
                pass
        elif self.kind == "read":  # waits for a disk or a network
            time.sleep(self.load_s)
        elif i % 8 == 7:  # "bursts": a new file, for example
            time.sleep(8 * self.load_s)
        group, threads = dist.is_initialized(), torch.get_num_threads()
        return os.getpid(), group, self.lock.locked(), threads


def time_steps(loader: DataLoader, compute_s: float, skip: int) -> tuple:
    """Return the seconds of a step, once under way, and next()'s share."""
    waited, batches = [], iter(loader)
    for step in range(len(loader)):
        if step == skip:
            begun = time.perf_counter()
        start = time.perf_counter()
        next(batches)
        waited.append(time.perf_counter() - start)
        time.sleep(compute_s)  # a GPU computes; it needs no core
    took = time.perf_counter() - begun
    return took / (len(loader) - skip), sum(waited[skip:]) / took


def worst(found: tuple, device) -> list[float]:
    """Return the largest of all ranks: one of them makes the others wait."""
    most = torch.tensor(found, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.tolist()


def step_time(load_s: float, compute_s: float, at_once: float) -> float:
    """Return the seconds per step if every batch takes equally long."""
    if at_once == 0:
        return load_s + compute_s  # nobody loads while the model computes
    return max(load_s / at_once, compute_s)


def try_workers(args, cores: float, device, line) -> None:
    """Try each kind of loading with more and more workers."""
    load_s, compute_s = args.load_ms / 1e3, args.compute_ms / 1e3
    for kind in "read", "decode":
        for workers in 0, 1, 2:
            data = Slow(kind, load_s, args.steps + 8)
            loader = DataLoader(data, None, num_workers=workers)
            step_s, share = worst(time_steps(loader, compute_s, 8), device)
            at_once = min(workers, cores) if kind == "decode" else workers
            said = step_time(load_s, compute_s, at_once)
            slower = "model" if said == compute_s else "loader"
            line(
                f"{kind}, {workers} workers: {1e3 * said:.0f} ms a step, for "
                f"the {slower}; took {1e3 * step_s:.0f} ms, waited {share:.0%}"
            )
    for ahead in 2, 8:
        data = Slow("bursts", 0.6 * compute_s, args.steps + 8)
        loader = DataLoader(data, None, num_workers=1, prefetch_factor=ahead)
        _, share = worst(time_steps(loader, compute_s, 8), device)
        wait = max(0, 8 * 0.6 - ahead)  # steps that 8 loads make it wait
        said = f"{wait / (8 + wait):.0%} should be waiting"
        line(f"bursts, {ahead} ahead: {said}; waited {share:.0%}")


def start_workers(line) -> None:
    """Count how many workers are started, and what a worker knows and gets."""
    for persist in False, True:
        data = Slow("read", 0, 4)
        how = {"num_workers": 2, "persistent_workers": persist}
        loader = DataLoader(data, None, **how)
        num = len({pid for _ in range(3) for pid, *_ in loader})
        line(f"3 epochs, persistent={persist}: {num} processes started")
    torch.set_num_threads(2)
    for method in "fork", "spawn":
        data.lines = [f"line {i}" for i in range(10_000)]
        how = {"num_workers": 1, "multiprocessing_context": method}
        with data.lock:  # as if another thread had it just now
            _, group, held, num = next(iter(DataLoader(data, None, **how)))
        sent = len(pickle.dumps(data)) if method == "spawn" else 0
        line(f"{method}: {sent} bytes are sent; in the process group: {group}")
        line(f"{method}: the lock is held: {held}; threads: {num} of 2")


def numbers(defaults: dict, argv: list[str] | None) -> argparse.Namespace:
    """Read flags that are numbers; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    for flag, default in defaults.items():
        how = {"type": type(default), "default": default}
        parser.add_argument(flag, **how, help=f"default: {default}")
    return in_range(parser.parse_args(argv))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags."""
    return numbers({"--load-ms": 20, "--compute-ms": 10, "--steps": 32}, argv)


def main() -> None:
    """Compare the queue's formula with what is measured, on all ranks."""
    args = parse_args()
    rank, _, device = setup(args)
    ours = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))
    cores = len(ours(0)) / int(os.environ["LOCAL_WORLD_SIZE"])

    def line(text):
        if rank == 0:
            say(text)
        dist.barrier()

    line(f"cores per rank: {cores:g}; load before: {os.getloadavg()[0]:.1f}")
    try_workers(args, max(cores, 1), device, line)
    start_workers(line)
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
