"""Chapter 10 - Scale a loss for fp16, and skip a step on all ranks or on none.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch10_amp.py
"""

import argparse
import itertools
import math
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
from torch.nn import functional as F


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


class Scaler:
    """Do what torch.amp.GradScaler does; if a rank overflows, none steps."""

    def __init__(self, scale: float, interval: int) -> None:
        self.value, self.interval = torch.tensor(scale), interval
        self.good, self.bad = 0, False

    def get_scale(self) -> float:
        return self.value.item()

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.value

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients; step unless one of them is not finite."""
        params = [p for g in optimizer.param_groups for p in g["params"]]
        bad = torch.zeros((), device=params[0].device)
        for p in params:
            if p.grad is not None:
                p.grad.mul_(1 / self.value)
                bad += (~p.grad.isfinite()).any()
        dist.all_reduce(bad, dist.ReduceOp.MAX)  # all skip, or none does
        self.bad = bool(bad)
        if not self.bad:
            optimizer.step()

    def update(self) -> None:
        """Halve the scale after an overflow, double it after good steps."""
        self.good = 0 if self.bad else self.good + 1
        if self.bad:
            self.value = self.value / 2
        elif self.good == self.interval:  # 2^128 would be inf in float32
            self.value, self.good = (self.value * 2).clamp(max=2.0**127), 0


def read_digits(num: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return num handwritten digits."""
    x, y = (torch.as_tensor(a[:num]) for a in load_digits(return_X_y=True))
    return x.float().to(device) / 16, y.to(device)


def digits(device) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a small net, and this rank's share of the digits."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    x, y = read_digits(1797, device)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return net.to(device), x[mine], y[mine]


def train(args, device, ours: bool) -> tuple[list[float], nn.Module]:
    """Train in fp16 with our scaler or torch's; return its scales, the net."""
    torch.manual_seed(args.seed)
    net, x, y = digits(device)
    optimizer = torch.optim.Adam(net.parameters(), args.lr)
    start = {"init_scale": 2.0**args.power, "growth_interval": args.interval}
    scaler = torch.amp.GradScaler(device.type, **start)
    if ours:
        scaler = Scaler(*start.values())
    scales = []
    for step in range(1, args.steps + 1):
        with torch.autocast(device.type, torch.float16):
            loss = F.cross_entropy(net(x), y)
        dist.all_reduce(mean := loss.detach().clone(), dist.ReduceOp.AVG)
        finite(mean, f"step {step}")  # no scale helps then
        if not scaler.get_scale():
            refuse(f"step {step}: the scale is 0: start with a lower --lr")
        scales.append(scaler.get_scale())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        for p in net.parameters():  # what DDP does: inf + 1 is inf for all
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        scaler.step(optimizer)
        scaler.update()
    return scales, net


def survey(net: nn.Module, x, y, power: int) -> tuple[float, float]:
    """Return what becomes of the logits' gradient in fp16, if it is scaled.

    The share of its numbers that are 0, and its error as a whole.
    """
    logits, found = net(x).detach(), []
    for dtype, scale in (torch.float64, 1), (torch.float16, 2.0**power):
        low = logits.to(dtype).requires_grad_()
        loss = F.cross_entropy(low.double(), y) * scale
        found.append(torch.autograd.grad(loss, low)[0].double() / scale)
    exact, low = found
    lost = ((low == 0) & (exact != 0)).double().mean()
    return lost.item(), ((low - exact).norm() / exact.norm()).item()


def numbers(defaults: dict, argv: list[str] | None) -> argparse.Namespace:
    """Read flags that are numbers; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    for flag, default in defaults.items():
        how = {"type": type(default), "default": default}
        parser.add_argument(flag, **how, help=f"default: {default}")
    return in_range(parser.parse_args(argv))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; the scale begins at 2 ** --power."""
    flags = {"--steps": 100, "--power": 24, "--interval": 20, "--seed": 0}
    args = numbers(flags | {"--lr": 0.01}, argv)
    if args.power > 100:
        refuse(f"--power {args.power}: must be 1 to 100")
    return args


def main() -> None:
    """Show how scales move, what fp16 loses, and how ranks agree."""
    args = parse_args()
    rank, _, device = setup(args)
    tell = say if rank == 0 else lambda _: None
    theirs, _ = train(args, device, ours=False)
    scales, net = train(args, device, ours=True)
    for step, (own, other) in enumerate(zip(scales, theirs, strict=True), 1):
        if own != other:
            why = f"step {step}: our scale is {own}, torch's {other}"
            refuse(f"{why}: that is a bug")
    steps = itertools.groupby(scales)
    steps = [f"2^{math.log2(k):.0f} x {len([*found])}" for k, found in steps]
    tell(f"scales: {', '.join(steps)}")
    for power in 0, 8, 16, 24, 32:
        zero, wrong = survey(net, *digits(device)[1:], power)
        tell(f"scaled by 2^{power}: {zero:.1%} became 0, error {wrong:.1e}")
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
