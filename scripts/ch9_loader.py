"""Chapter 9 - The loader is a queue: who waits, it or the model.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch9_loader.py
"""

import job  # first, since importing torch takes seconds

import os
import pickle
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


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


def worst(times: tuple, device) -> list[float]:
    """Return the largest of all ranks: one of them makes the others wait."""
    most = torch.tensor(times, device=device)
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
            expected_s = step_time(load_s, compute_s, at_once)
            slower = "model" if expected_s == compute_s else "loader"
            expected = f"{1e3 * expected_s:.0f} ms a step, set by the {slower}"
            took = f"took {1e3 * step_s:.0f} ms, waited {share:.0%}"
            line(f"{kind}, {workers} workers: {expected}; {took}")
    for ahead in 2, 8:
        data = Slow("bursts", 0.6 * compute_s, args.steps + 8)
        loader = DataLoader(data, None, num_workers=1, prefetch_factor=ahead)
        _, share = worst(time_steps(loader, compute_s, 8), device)
        wait = max(0, 8 * 0.6 - ahead)  # steps that 8 loads make it wait
        expected = f"{wait / (8 + wait):.0%} should be waiting"
        line(f"bursts, {ahead} ahead: {expected}; waited {share:.0%}")


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


def main(args, rank: int, world_size: int, device) -> None:
    """Compare the queue's formula with what is measured, on all ranks."""
    ours = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))
    cores = len(ours(0)) / int(os.environ["LOCAL_WORLD_SIZE"])

    def line(text):
        if rank == 0:
            job.say(text)
        dist.barrier()  # the next measurement begins on all ranks at once

    line(f"cores per rank: {cores:g}; load before: {os.getloadavg()[0]:.1f}")
    try_workers(args, max(cores, 1), device, line)
    start_workers(line)


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    numbers = {"load_ms": 20, "compute_ms": 10, "steps": 32}
    return job.Flags(__doc__, **numbers).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
