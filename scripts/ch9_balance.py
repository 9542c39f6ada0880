"""Chapter 9 - Balance: nobody waits long for the slowest rank.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch9_balance.py
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

WAYS = "as they come", "longest first", "by speed", "whoever is free"


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


def read_text() -> tuple[torch.Tensor, torch.Tensor]:
    """Read "Frankenstein" as bytes: nine tenths to train on, one to test."""
    path = os.path.join(os.path.dirname(__file__), "frankenstein.txt")
    try:
        with open(path, "rb") as file:
            text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        why = f"{path}: {getattr(error, 'strerror', error)}"
        refuse(f"{why}: put the book's copy beside this script")
    return text.split([len(text) - len(text) // 10, len(text) // 10])


def work_of(text: torch.Tensor) -> list[float]:
    """Return each sentence's work: n for the layers, n n / 256 to attend."""
    found = re.findall(rb"[^.!?]+[.!?]", bytes(text.tolist()))
    return [n + n * n / 256 for n in map(len, found)]


def split(work: list[float], speeds: list[float], way: str) -> list[list[int]]:
    """Split sentences over ranks; return what each rank gets, by number."""
    ranks, shares = range(len(speeds)), [[] for _ in speeds]
    ends, order = [0.0 for _ in speeds], list(range(len(work)))
    if way == "as they come":
        return [order[rank :: len(speeds)] for rank in ranks]
    if way != "whoever is free":  # the work is known, so begin with the most
        order.sort(key=lambda i: -work[i])
    guess = [1.0 for _ in speeds] if way == "longest first" else speeds
    for i in order:
        known = 0 if way == "whoever is free" else work[i]
        rank = min(ranks, key=lambda r: ends[r] + known / guess[r])
        shares[rank].append(i)
        ends[rank] += work[i] / guess[rank]
    return shares


def busy(work: list[list], speeds: list[float], way: str, device) -> float:
    """Return the share of the ranks' time in which they work, over all steps.

    work[t] is what step t has to do. A step ends with its slowest rank.
    """
    rank, spent, done = dist.get_rank(), 0.0, 0.0
    for step in work:
        mine = sum(step[i] for i in split(step, speeds, way)[rank])
        ends = torch.zeros(len(speeds), dtype=torch.double, device=device)
        ends[rank] = mine / speeds[rank]
        dist.all_reduce(ends)
        spent += ends.max().item() * sum(speeds)
        done += sum(step)
    return done / spent


def sum_split(work: list[float], shares: list[list[int]], seed: int, device):
    """Add up a random gradient per sentence: on each rank, then over ranks."""
    dice = torch.Generator().manual_seed(seed)
    each = torch.randn(len(work), 1000, generator=dice).to(device)
    total = torch.zeros(1000, device=device)
    for i in shares[dist.get_rank()]:
        total += each[i]
    dist.all_reduce(total)
    return total


def pull(num: int, store: dist.Store, step: int, seconds: float) -> list:
    """Take one number after another off a counter until num are taken."""
    mine = []
    while (i := store.add(f"taken in {step}", 1) - 1) < num:
        mine.append(i)
        time.sleep(seconds)  # the work
    return mine


def open_store(rank: int, device) -> dist.Store:
    """Open a store on rank 0, at a free port, and connect all ranks to it."""
    host, found = os.environ["MASTER_ADDR"], [None]
    if rank == 0:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        found = [store.port]
    dist.broadcast_object_list(found, 0, device=device)
    return store if rank == 0 else dist.TCPStore(host, found[0])


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    numbers = {"--sentences": 64, "--steps": 20, "--slower": 2.0, "--seed": 0}
    for flag, default in numbers.items():
        parser.add_argument(flag, type=type(default), default=default)
    args = in_range(parser.parse_args(argv))
    if not 0.01 <= (slower := args.slower) <= 100:  # it really works so long
        refuse(f"--slower {slower}: must be 0.01 to 100, times as slow")
    return args


def main() -> None:
    """Compare four splits on equal ranks, and on ranks of unequal speed."""
    args = parse_args()
    rank, world_size, device = setup(args)
    num, work = args.sentences, work_of(read_text()[0])
    if num * args.steps > len(work):
        refuse(f"{args.steps} steps x {num} sentences: there are {len(work)}")
    if num < world_size:
        why = f"--sentences {num}: must be {world_size} or more"
        refuse(f"{why}, as ranks are")
    steps = [work[num * t : num * (t + 1)] for t in range(args.steps)]
    even = [1.0] * world_size
    slow = [*even[1:], 1 / args.slower]  # the last rank is slower
    for way in WAYS:
        equal, unequal = (busy(steps, s, way, device) for s in (even, slow))
        if rank == 0:
            say(f"{way}: busy {equal:.3f}, with a slow rank {unequal:.3f}")
    sums = [
        sum_split(work[:num], split(work[:num], slow, way), args.seed, device)
        for way in WAYS[:2]
    ]
    store = open_store(rank, device)
    mine = pull(num, store, 0, 0.002 / slow[rank])
    dist.all_gather_object(taken := [[]] * world_size, mine)
    if rank == 0:
        off, same = (sums[0] - sums[1]).abs().max(), torch.equal(*sums)
        say(f"another split, the same gradient: {same}, off by {off:.0e}")
        once = sorted(i for some in taken for i in some) == list(range(num))
        share = len(taken[-1]) / num
        say(f"pulled, each once: {once}; the slow rank took {share:.0%}")
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
