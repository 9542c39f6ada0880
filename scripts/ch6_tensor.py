"""Chapter 6 - Tensor parallel: one layer on all ranks, by columns and by rows.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch6_tensor.py
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
from sklearn.datasets import load_digits
from torch import nn


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


class Fork(torch.autograd.Function):
    """Pass x on; in the backward pass, sum the gradients of all ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class Join(torch.autograd.Function):
    """Sum what all ranks computed; pass the gradient on as it is."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def share(whole: torch.Tensor, dim: int) -> nn.Parameter:
    """Return this rank's part of a weight."""
    parts = whole.detach().tensor_split(dist.get_world_size(), dim)
    return nn.Parameter(parts[dist.get_rank()].clone())


class ColumnLinear(nn.Module):
    """A part of the outputs, from the whole input."""

    def __init__(self, whole: nn.Linear):
        super().__init__()
        self.weight, self.bias = share(whole.weight, 0), share(whole.bias, 0)

    def forward(self, x):
        return nn.functional.linear(Fork.apply(x), self.weight, self.bias)


class RowLinear(nn.Module):
    """The whole output, summed up from each rank's part of the input."""

    def __init__(self, whole: nn.Linear):
        super().__init__()
        self.weight, self.bias = share(whole.weight, 1), whole.bias

    def forward(self, x):
        return Join.apply(nn.functional.linear(x, self.weight)) + self.bias


def train(args, rank: int, world_size: int, device) -> list[torch.Tensor]:
    """Train a split net; return the loss at each step, the same on all."""
    if world_size > args.width:
        refuse(f"{world_size} ranks > width {args.width}")
    torch.manual_seed(args.seed)  # all make the same; each keeps its part
    images, digits = map(torch.as_tensor, load_digits(return_X_y=True))
    images = images.to(torch.get_default_dtype()) / 16  # (1797, 64)
    wide = ColumnLinear(nn.Linear(64, args.width))
    narrow = RowLinear(nn.Linear(args.width, 10))
    say(f"weights {tuple(wide.weight.shape)} and {tuple(narrow.weight.shape)}")
    net = nn.Sequential(wide, nn.ReLU(), narrow).to(device)
    optimizer = torch.optim.SGD(net.parameters(), args.lr, 0.9)
    dice, losses = torch.Generator().manual_seed(args.seed), []
    for step in range(args.steps):  # all ranks see the same samples
        pick = torch.randint(len(images), (args.batch_size,), generator=dice)
        x, y = images[pick].to(device), digits[pick].to(device)
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        finite(losses[-1], f"{step=}")
        if rank == 0 and step % 20 == 19:
            loss = torch.stack(losses[-20:]).mean()
            say(f"steps {step - 18} to {step + 1}: {loss=:.4f}")
    return losses


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    numbers = {"--steps": 100, "--batch-size": 96, "--width": 1024}
    for flag, default in (numbers | {"--seed": 0, "--lr": 0.05}).items():
        how = {"type": type(default), "default": default}
        parser.add_argument(flag, **how, help=f"default: {default}")
    return in_range(parser.parse_args(argv))


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


def finite(loss: torch.Tensor, where: str) -> None:
    """End all ranks if the loss, which is the same on all, is not finite."""
    if not loss.isfinite():
        refuse(f"{where}: the loss is {loss.item()}: start with a lower --lr")


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
    train(args := parse_args(), *setup(args))
    dist.destroy_process_group()
