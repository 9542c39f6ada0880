"""Chapter 6 - By hand: a stage on each rank, micro-batches by send and recv.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch6_by_hand.py
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
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


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


def make_task(num: int) -> tuple[TensorDataset, TensorDataset, nn.Module]:
    """Make handwritten digits, num to train on and 357 to test, and a CNN."""
    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    x = x.to(torch.get_default_dtype()).view(-1, 1, 8, 8) / 16
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    parts = order[:1440][:num], order[1440:]
    layers = []  # much arithmetic, but only 158,538 numbers to send
    for channels in (1, 64), (64, 128), (128, 64):
        layers += [nn.Conv2d(*channels, 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10)]
    return *(TensorDataset(x[i], y[i]) for i in parts), nn.Sequential(*layers)


def train_step(stage, shape, x, y, num: int) -> torch.Tensor:
    """Run all micro-batches forward, then back; return the loss, if last."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    held = []  # what each micro-batch keeps until its backward pass
    for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
        if rank > 0:  # the output of the stage before, not the images
            piece = torch.empty(len(piece), *shape, device=x.device)
            dist.recv(piece, rank - 1)
            piece.requires_grad_()
        output = stage(piece)
        if rank < last:
            dist.send(output.detach(), rank + 1)
        else:
            loss = nn.functional.cross_entropy(output, target)
            output = loss * len(piece) / len(x)  # its share of the mean
        held.append((piece, output))
    for piece, output in held:
        gradient = None  # a loss starts with 1 by itself
        if rank < last:
            gradient = torch.empty_like(output)
            dist.recv(gradient, rank + 1)
        output.backward(gradient)
        if rank > 0:
            dist.send(piece.grad, rank - 1)
    return sum(output.detach() for _, output in held if rank == last)


def train(args, rank: int, world_size: int, device) -> list[torch.Tensor]:
    """Train this rank's stage; return the loss at each step, if it is last."""
    torch.manual_seed(args.seed)  # all make the same net; each keeps its part
    train_set, _, net = make_task(args.samples)
    if world_size > len(net):
        refuse(f"{world_size} ranks > {len(net)} layers")
    start, end = (len(net) * r // world_size for r in (rank, rank + 1))
    shape = net[:start](train_set[:1][0]).shape[1:]  # of what comes in
    stage = net[start:end].to(device)
    say(f"layers {start} to {end - 1}; a sample comes as {tuple(shape)}")
    group = {"params": list(stage.parameters())}  # a pooling layer has none
    optimizer = torch.optim.SGD([group], args.lr, 0.9)
    dice, losses = torch.Generator(), []
    sampler = RandomSampler(train_set, generator=dice)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    for epoch in range(args.epochs):
        dice.manual_seed(args.seed + epoch)  # the same order on all ranks
        for x, y in loader:
            optimizer.zero_grad()
            x, y = x.to(device), y.to(device)
            loss = train_step(stage, shape, x, y, args.microbatches)
            losses.append(torch.as_tensor(loss))
            optimizer.step()
        loss = torch.stack(losses[-len(loader) :]).to(device).double().mean()
        dist.broadcast(loss, world_size - 1)  # only the last rank knows it
        finite(loss, f"{epoch=}")
        if rank == world_size - 1:
            say(f"{epoch=} {loss=:.4f}")
    return losses


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    numbers = {"--epochs": 3, "--batch-size": 192, "--samples": 1440}
    numbers |= {"--microbatches": 4, "--seed": 0, "--lr": 0.05}
    for flag, default in numbers.items():
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
