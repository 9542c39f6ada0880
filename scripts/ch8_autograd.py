"""Chapter 8 - DDP from scratch: the backward of a collective.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_autograd.py
"""

import argparse
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
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
from torch.autograd import gradcheck


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


class AllReduce(torch.autograd.Function):
    """Every rank gets the sum: y_r = x_0 + x_1 + ..."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(y := x.contiguous().clone())
        return y

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return AllReduce.apply(grad)  # x_s is in every y_r


class AllGather(torch.autograd.Function):
    """Every rank gets a row from each: (n,) becomes (W, n)."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        rows = x.new_empty(dist.get_world_size(), *x.shape)
        dist.all_gather(list(rows), x.contiguous())
        return rows

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return ReduceScatter.apply(grad)  # x_s is row s of every y_r


class ReduceScatter(torch.autograd.Function):
    """Rank r gets the sum of everybody's row r: (W, n) becomes (n,)."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        row = x.new_empty(x.shape[1:])  # contiguous, whatever x is
        dist.reduce_scatter(row, [*x.contiguous()])
        return row

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return AllGather.apply(grad)  # row r of any x_s is in y_r alone


class Broadcast(torch.autograd.Function):
    """Every rank gets the root's: y_r = x_root."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, root=0) -> torch.Tensor:
        ctx.root = root
        dist.broadcast(y := x.contiguous().clone(), root)
        return y

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple:
        total = AllReduce.apply(grad)  # x_root is in every y_r, and it alone
        return total * (dist.get_rank() == ctx.root), None


class AllToAll(torch.autograd.Function):
    """Row s of rank r becomes row r of rank s: y_s[r] = x_r[s]."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        dist.all_to_all_single(y := x.new_empty(x.shape), x.contiguous())
        return y

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return AllToAll.apply(grad)  # each row's gradient goes home


class OneFunction(torch.autograd.Function):
    """See what all ranks call as one function of all inputs, (W, ...)."""

    @staticmethod
    def forward(ctx, inputs: torch.Tensor, call: Callable) -> torch.Tensor:
        ctx.x = inputs[dist.get_rank()].detach().requires_grad_()
        with torch.enable_grad():
            ctx.y = call(ctx.x)
        return AllGather.forward(ctx, ctx.y.detach())

    @staticmethod
    def backward(ctx, grads: torch.Tensor) -> tuple:
        grad = grads[dist.get_rank()]
        (mine,) = torch.autograd.grad(ctx.y, ctx.x, grad, retain_graph=True)
        return AllGather.forward(ctx, mine), None


def passes(call: Callable, shape: tuple, device) -> bool:
    """Tell whether a call's backward is the derivative of its forward."""
    torch.manual_seed(0)  # equal on all ranks
    x = torch.randn(dist.get_world_size(), *shape, dtype=torch.double)
    inputs = x.to(device).requires_grad_(), call
    return gradcheck(OneFunction.apply, inputs, raise_exception=False)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    parser.add_argument("--numbers", type=int, default=3, help="in a row")
    return in_range(parser.parse_args(argv))


def main() -> None:
    """Check the backward of each collective across ranks."""
    args = parse_args()
    rank, world_size, device = setup(args)
    for function in AllReduce, AllGather, ReduceScatter, Broadcast, AllToAll:
        rows = [world_size] * (function in (ReduceScatter, AllToAll))
        shape, name = (*rows, args.numbers), function.__name__
        if not passes(lambda x, f=function: f.apply(x.sin()), shape, device):
            refuse(f"{name} has a wrong backward: that is a bug")
        if rank == 0:
            say(f"{name}: its backward is its derivative")
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
