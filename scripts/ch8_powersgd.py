"""Chapter 8 - DDP from scratch: a product instead of a matrix.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_powersgd.py
"""

import argparse
import gc
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
from torch import futures, nn
from torch.utils.data import TensorDataset


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


class Hook:
    """What DDP calls with each bucket, to get the mean of all ranks'."""

    def __init__(self) -> None:
        self.kept, self.num_bytes = {}, 0  # what was not sent; what was

    def run(self, _, bucket: dist.GradBucket) -> futures.Future[torch.Tensor]:
        """Return a future that holds the mean, as DDP wants it."""
        done = futures.Future()
        done.set_result(self.mean(bucket.buffer(), bucket.parameters()))
        return done

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        """Add up a tensor over all ranks, and count the bytes handed in."""
        self.num_bytes += x.nbytes
        dist.all_reduce(x)
        return x

    def mean(self, x: torch.Tensor, params: list) -> torch.Tensor:
        """Return the mean of x over all ranks: here, in full."""
        return self.add_up(x / dist.get_world_size())


class PowerSGD(Hook):
    """Send a matrix as a product of two narrow ones, and keep what is left."""

    def __init__(self, rank: int, feedback: bool = True) -> None:
        super().__init__()
        self.rank, self.feedback, self.guess = rank, feedback, {}

    def factors(self, matrix: torch.Tensor, key: object) -> tuple:
        """Return p and q, so that p @ q.T is near the mean of all ranks'."""
        if key not in self.guess:  # the same on all ranks
            dice = torch.Generator().manual_seed(len(self.guess))
            q = torch.randn(matrix.shape[1], self.rank, generator=dice)
            self.guess[key] = q.to(matrix)
        p = torch.linalg.qr(self.add_up(matrix @ self.guess[key])).Q
        self.guess[key] = self.add_up(matrix.T @ p) / dist.get_world_size()
        return p, self.guess[key]

    def mean(self, x: torch.Tensor, params: list) -> torch.Tensor:
        """Compress the matrices; send all other gradients in full."""
        parts = (result := x.clone()).split([p.numel() for p in params])
        for param, part in zip(params, parts, strict=True):
            matrix = part.view(len(param), -1)
            if param.dim() < 2:
                part.copy_(self.add_up(part / dist.get_world_size()))
                continue
            matrix += self.kept.get(param, 0)
            p, q = self.factors(matrix, param)
            if self.feedback:
                self.kept[param] = matrix - p @ q.T
            matrix.copy_(p @ q.T)
        return result


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=20, help="steps a test")
    parser.add_argument("--seed", type=int, default=0)
    return in_range(parser.parse_args(argv))


def train(hook: Hook, args, rank: int, device) -> list[tuple]:
    """Train a CNN on digits; return steps, bytes and loss on other digits."""
    torch.manual_seed(args.seed)
    train_set, test_set, net = make_task(1440)
    ddp, curve = nn.parallel.DistributedDataParallel(net.to(device)), []
    ddp.register_comm_hook(None, hook.run)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, 0.9)
    torch.manual_seed(args.seed + rank)
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        x, y = (p.to(device) for p in train_set[torch.randint(1440, (32,))])
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        if step % args.every == 0 or step == args.steps:
            x, y = (part.to(device) for part in test_set[:])
            loss = nn.functional.cross_entropy(net(x), y).detach()
            finite(loss, f"step {step}")
            curve.append((step, hook.num_bytes, loss.item()))
    return curve


def converge(args, rank: int, device) -> None:
    """Compress a mean again and again; print how far the product is off."""
    torch.manual_seed(args.seed + rank)
    matrix = torch.randn(40, 4) @ torch.randn(4, 30) + torch.randn(40, 30)
    dist.all_reduce(mean := matrix.to(device) / dist.get_world_size())
    hook, size = PowerSGD(4), mean.norm()
    found = [hook.factors(matrix.to(device), "again") for _ in range(6)]
    errors = [f"{(mean - p @ q.T).norm() / size:.3f}" for p, q in found]
    best = torch.linalg.svdvals(mean)[4:].norm() / size
    if rank == 0:
        say(f"error of rank 4: {' '.join(errors)}; the least is {best:.3f}")


def main() -> None:
    """Show how a guess converges; train with feedback, and without."""
    args = parse_args()
    rank, _, device = setup(args)
    converge(args, rank, device)
    hooks = {"rank 2": PowerSGD(2), "no feedback": PowerSGD(2, False)}
    for name, hook in ({"all of it": Hook()} | hooks).items():
        curve = train(hook, args, rank, device)
        if rank == 0:
            sent = hook.num_bytes / args.steps / 1000
            losses = " ".join(f"{loss:.3f}" for _, _, loss in curve)
            say(f"{name:12} {sent:6.1f} kB a step, test loss: {losses}")
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
