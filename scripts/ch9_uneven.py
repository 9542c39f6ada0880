"""Chapter 9 - Uneven shares: five ways to end an epoch together.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch9_uneven.py
"""

import argparse
import gc
import os
import re
import signal
import sys
import threading
import time
from contextlib import nullcontext, suppress
from datetime import timedelta
from itertools import cycle, islice, zip_longest
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
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WAYS = "cut", "repeat", "join", "join, divided by those present", "pad"


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


def batches_of(rank: int, files: int, batch_size: int) -> list[tuple]:
    """Return the batches of a rank, which has 2 r files more than rank 0."""
    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    before = sum(files + 2 * r for r in range(rank))
    mine = torch.arange(24 * before, 24 * (before + files + 2 * rank))
    parts = mine.split(batch_size)  # the last one is smaller
    return [(x[i].double() / 16, y[i]) for i in parts]


def agree_on(num: int, op: dist.ReduceOp, device) -> int:
    """Return the least, the most or the sum of all ranks' numbers."""
    every = torch.tensor(num, device=device)
    dist.all_reduce(every, op)
    return every.item()


def even_out(way: str, batches: list[tuple], device) -> list[tuple]:
    """Give all ranks the same number of batches, unless Join will do it."""
    least, most = (
        agree_on(len(batches), op, device)
        for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX)
    )
    if way == "cut":  # what some have more is lost
        return batches[:least]
    if way == "repeat":  # what some have less is counted twice
        return list(islice(cycle(batches), most))
    if way == "pad":  # empty batches, which weigh nothing
        empty = [part[:0] for part in batches[0]]
        return batches + [empty] * (most - len(batches))
    return batches


def take_step(net, x, y, weight: float, optimizer) -> None:
    """Take a step along the sum of the losses / weight."""
    loss = nn.functional.cross_entropy(net(x), y, reduction="sum")
    optimizer.zero_grad()
    (loss / weight).backward()
    optimizer.step()


def train(args, way: str, batches: list[tuple], device) -> torch.Tensor:
    """Train in one of the ways, or in one process; return the weights."""
    torch.manual_seed(args.seed)
    net = nn.Linear(64, 10).double().to(device)
    optimizer, ddp = torch.optim.SGD(net.parameters(), args.lr), net
    joined, world_size = nullcontext(), dist.get_world_size()
    if way != "alone":
        ddp = DistributedDataParallel(net)
    if "join" in way:
        joined = ddp.join(divide_by_initial_world_size=way == "join")
    with joined:
        for x, y in batches:
            weight = len(y)
            if way == "pad":  # the mean over all samples of this step
                total = agree_on(len(y), dist.ReduceOp.SUM, device)
                weight = total / world_size  # since DDP divides by W
            take_step(ddp, x.to(device), y.to(device), weight, optimizer)
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    numbers = {"--files": 3, "--batch-size": 16, "--seed": 0, "--lr": 0.5}
    for flag, default in numbers.items():
        parser.add_argument(flag, type=type(default), default=default)
    return in_range(parser.parse_args(argv))


def main() -> None:
    """Compare the ways with one process that reads what all ranks read."""
    args = parse_args()
    rank, world_size, device = setup(args)
    if 24 * world_size * (args.files + world_size - 1) > 1797:
        refuse(f"{args.files} files and more for each rank: there are 74")
    sizes = args.files, args.batch_size
    shares = [batches_of(r, *sizes) for r in range(world_size)]
    union = [  # what one process would read, step by step
        [torch.cat(parts) for parts in zip(*some, strict=True)]
        for some in (filter(None, step) for step in zip_longest(*shares))
    ]
    start = train(args, "alone", [], device)
    truth = train(args, "alone", union, device)
    for way in WAYS:
        batches = even_out(way, shares[rank], device)
        weights = train(args, way, batches, device)
        off = ((weights - truth).norm() / (truth - start).norm()).item()
        mine = sum(len(y) for _, y in batches)
        used = agree_on(mine, dist.ReduceOp.SUM, device)
        steps = agree_on(len(batches), dist.ReduceOp.MAX, device)
        if rank == 0:
            counted = f"{steps} steps, {used} samples"
            say(f"{way}: {counted}, weights off by {off:.3f}")
    gc.collect()  # torch 2.13 may abort at exit if DDP's last work lives
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
