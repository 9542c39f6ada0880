"""Chapter 9 - Seeds: who draws the same random numbers as whom.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch9_seeds.py
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
from functools import partial
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

import numpy as np
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


class Noisy(Dataset):
    """Samples to which each read adds noise, drawn in one of several ways."""

    def __init__(self, num: int, how: str, seed: int):
        self.num, self.how, self.seed, self.epoch = num, how, seed, 0
        self.dice = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, i: int) -> float:
        if self.how == "own generator":
            return self.dice.random()
        if self.how == "generator per sample":
            return np.random.default_rng([self.seed, self.epoch, i]).random()
        return np.random.random()


def as_forked(state: tuple, worker: int) -> None:
    """Undo what torch does for NumPy in each worker since version 1.9."""
    np.random.set_state(state)


def read_all(args, how: str, rank: int, world_size: int, workers: int) -> dict:
    """Read the data for some epochs; return what each read drew."""
    seed = args.seed + rank if how == "seed + rank" else args.seed
    torch.manual_seed(seed)
    np.random.seed(seed)
    data, drawn = Noisy(args.samples, how, args.seed), {}
    init = partial(as_forked, np.random.get_state())
    for data.epoch in range(args.epochs):
        mine = range(rank, args.samples, world_size)
        loader = DataLoader(
            data,
            None,
            sampler=mine,
            num_workers=workers,
            worker_init_fn=init if how == "before torch 1.9" else None,
        )
        for i, number in zip(mine, loader, strict=True):
            drawn[data.epoch, i] = float(number)
    return drawn


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    numbers = {"--samples": 16, "--epochs": 2, "--workers": 2, "--seed": 0}
    for flag, default in numbers.items():
        parser.add_argument(flag, type=int, default=default)
    return in_range(parser.parse_args(argv))


def main() -> None:
    """Count the different numbers that all workers of all ranks draw."""
    args = parse_args()
    rank, world_size, _ = setup(args)
    ways = "before torch 1.9", "own generator", "one seed for all ranks"
    for how in *ways, "seed + rank", "generator per sample":
        every = []
        for workers in args.workers, 0:
            found = [{}] * world_size
            dist.all_gather_object(
                found, read_all(args, how, rank, world_size, workers)
            )
            every.append({k: v for some in found for k, v in some.items()})
        count = f"{len(set(every[0].values()))} of {len(every[0])} different"
        word = "unchanged" if every[0] == every[1] else "changed"
        if rank == 0:
            say(f"{how}: {count}, {word} without workers")
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
