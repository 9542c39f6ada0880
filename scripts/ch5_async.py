"""Chapter 5 - Asynchronous: a server takes gradients as they come, some stale.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch5_async.py
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
from torch.nn.utils import parameters_to_vector, vector_to_parameters


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


def deliveries(periods: list[int], num: int) -> list[tuple[int, int]]:
    """List the first num deliveries of gradients: (tick, worker's rank).

    Worker 1 needs periods[0] ticks for a gradient, worker 2 periods[1], ...
    """
    workers = enumerate(periods, 1)
    turns = [(p * n, w) for w, p in workers for n in range(1, num + 1)]
    return sorted(turns)[:num]


class Trainer:
    """Hold a replica and what it needs for a gradient and for a step."""

    def __init__(self, device: torch.device, lr: float):
        x, y = map(torch.as_tensor, load_digits(return_X_y=True))
        self.x, self.y, self.lr = (x / 16).to(device), y.to(device), lr
        torch.manual_seed(0)  # all start equal
        layers = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
        self.net = nn.Sequential(*layers).to(device, x.dtype)
        self.weights = parameters_to_vector(self.net.parameters()).detach()
        self.draw = torch.Generator().manual_seed(dist.get_rank())

    def loss(self, batch=...) -> torch.Tensor:
        """Return the loss on some samples, or on all, with current weights."""
        vector_to_parameters(self.weights, self.net.parameters())
        outputs = self.net(self.x[batch])
        return nn.functional.cross_entropy(outputs, self.y[batch])

    def gradient(self) -> torch.Tensor:
        """Return the gradient on a new batch of 32, as one vector."""
        batch = torch.randint(len(self.x), (32,), generator=self.draw)
        loss = self.loss(batch)
        grads = torch.autograd.grad(loss, [*self.net.parameters()])
        return parameters_to_vector(grads)


def train_sync(trainer, rank, periods: list[int], num: int) -> list[tuple]:
    """Wait for all workers in each step; use the mean of their gradients.

    Returns a log: (tick, gradients so far, staleness, loss) of each round.
    """
    log, workers = [], len(periods)
    for step in range(1, num // workers + 1):
        gradient = torch.zeros_like(trainer.weights)  # rank 0 only watches
        if rank > 0:
            gradient = trainer.gradient()
        dist.all_reduce(gradient)
        trainer.weights -= trainer.lr * gradient / workers
        if rank == 0:
            loss = trainer.loss().item()
            log.append((step * max(periods), step * workers, 0, loss))
    return log


def train_async(trainer, rank, periods: list[int], num: int) -> list[tuple]:
    """Keep the weights on rank 0; take a step with each gradient it gets."""
    log, seen = [], [0] * (len(periods) + 1)
    for done, (tick, worker) in enumerate(deliveries(periods, num)):
        if rank == worker:
            dist.send(trainer.gradient(), dst=0)
            dist.recv(trainer.weights, src=0)
        elif rank == 0:
            gradient = torch.empty_like(trainer.weights)
            dist.recv(gradient, src=worker)
            trainer.weights -= trainer.lr * gradient  # may be stale
            dist.send(trainer.weights, dst=worker)
            if (done + 1) % len(periods) == 0:
                loss, staleness = trainer.loss().item(), done - seen[worker]
                log.append((tick, done + 1, staleness, loss))
            seen[worker] = done + 1
    return log


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    parser.add_argument("--gradients", type=int, default=240, help="of all")
    parser.add_argument("--slowest", type=int, default=4, help="in ticks")
    parser.add_argument("--lr", type=float, default=0.2)
    return in_range(parser.parse_args(argv))


def main() -> None:
    """Train both ways from the same start, with the same work."""
    args = parse_args()
    rank, world_size, device = setup(args)
    periods = [1] * (world_size - 2) + [args.slowest]  # the last is slow
    if world_size < 2 or args.gradients < len(periods):
        why = f"{world_size} ranks, {args.gradients} gradients"
        refuse(f"{why}: rank 0 serves, each other needs one")
    for train in train_sync, train_async:
        trainer = Trainer(device, args.lr)
        log = train(trainer, rank, periods, args.gradients)
        loss = trainer.loss().detach()
        dist.broadcast(loss, 0)  # the server's: a worker's weights may be old
        finite(loss, train.__name__)
        if rank == 0:
            ticks, num, _, loss = log[-1]
            say(f"{train.__name__}: {num} gradients, {ticks=}, {loss=:.3f}")


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
    main()
    dist.destroy_process_group()
