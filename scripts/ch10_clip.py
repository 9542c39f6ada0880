"""Chapter 10 - Clip gradients by the norm of all shards, once it is complete.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch10_clip.py
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

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import parallel as tp
from torch.nn.functional import mse_loss


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


def make_tanh(device) -> nn.Module:
    """Return a small net in float64, the same on all ranks."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
    return net.double().to(device)


def make_hard(num: int, seed: int, device) -> tuple[torch.Tensor, ...]:
    """Return inputs and targets; later samples are harder than early ones."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 8, generator=draw, dtype=torch.double)
    y = x[:, :4] * torch.linspace(1, 9, num, dtype=torch.double)[:, None]
    return x.to(device), y.to(device)


def in_a_row(net: nn.Module) -> torch.Tensor:
    """Return all gradients of a net, in a row; of shards, all of them."""
    found = [p.grad for p in net.parameters()]
    found = [g.full_tensor() if hasattr(g, "to_local") else g for g in found]
    return torch.cat([g.flatten() for g in found])


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    """Return how far a tensor is off, as a share of the right one's length."""
    return ((found - right).norm() / right.norm()).item()


def clip(net: nn.Module, most: float) -> torch.Tensor:
    """Clip by torch's own norm, which knows of shards; return the norm."""
    norm = nn.utils.clip_grad_norm_(net.parameters(), most)
    return norm.full_tensor() if hasattr(norm, "to_local") else norm


def clip_shards(net: nn.Module, most: float, add: bool) -> torch.Tensor:
    """Clip by the norm of what this rank has, or of what all ranks have."""
    found = [p.grad.to_local() for p in net.parameters()]
    total = sum(g.square().sum() for g in found)
    if add:
        dist.all_reduce(total)  # but who counts what all ranks have?
    share = most / (total.sqrt() + 1e-6)  # as torch does, NaN included
    for g in found:
        g.mul_(share.clamp(max=1.0))  # min(1, nan) is 1 in Python
    return total.sqrt()


def ddp(net, x, y, most, parts: int = 1, early=False, unscale=None):
    """Train in k parts, perhaps with a loss scale; clip late, or early."""
    model = nn.parallel.DistributedDataParallel(net)
    optimizer, on = torch.optim.SGD(net.parameters()), unscale is not None
    scaler = torch.amp.GradScaler(x.device.type, 2.0**12, enabled=on)
    pieces = zip(x.chunk(parts), y.chunk(parts), strict=True)
    for place, piece in enumerate(pieces):
        with nullcontext() if place == parts - 1 else model.no_sync():
            loss = mse_loss(model(piece[0]), piece[1]) / parts
            scaler.scale(loss).backward()
        if early and place < parts - 1:
            clip(net, most)  # these are still this rank's own
    if unscale:
        scaler.unscale_(optimizer)
    norm = clip(net, most)
    if not unscale:
        scaler.unscale_(optimizer)  # as scaler.step() would
    return norm


def before(net, x, y, most):
    """Clip on each rank, then average: each is cut by a norm of its own."""
    mse_loss(net(x), y).backward()
    norm = clip(net, most)
    for p in net.parameters():
        dist.all_reduce(p.grad, dist.ReduceOp.AVG)
    return norm


def sharded(net, x, y, most, ours, plan=None):
    """Shard all parameters with FSDP2 or, by a plan, cut the layers for TP."""
    mesh = init_device_mesh(x.device.type, (dist.get_world_size(),))
    if plan:
        tp.parallelize_module(net, mesh, plan)
    else:
        fully_shard(net, mesh=mesh)
    mse_loss(net(x), y).backward()
    return ours(net, most)


def numbers(defaults: dict, argv: list[str] | None) -> argparse.Namespace:
    """Read flags that are numbers; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    for flag, default in defaults.items():
        how = {"type": type(default), "default": default}
        parser.add_argument(flag, **how, help=f"default: {default}")
    return in_range(parser.parse_args(argv))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; --most is the norm to clip to."""
    return numbers({"--samples": 64, "--seed": 0, "--most": 1.0}, argv)


def main() -> None:
    """Clip in ten ways; compare with one process that has all samples."""
    args = parse_args()
    rank, world_size, device = setup(args)
    if args.samples % (4 * world_size):
        refuse(f"--samples {args.samples}: must be 4 x ranks, or a multiple")
    x, y = make_hard(args.samples, args.seed, device)
    mse_loss((alone := make_tanh(device))(x), y).backward()
    clip(alone, args.most)
    own, added = (partial(clip_shards, add=add) for add in (False, True))
    plan = {"0": tp.ColwiseParallel(), "2": tp.RowwiseParallel()}
    tries = {
        "DDP, before the average": partial(before),
        "DDP, after it": partial(ddp),
        "DDP, after each of 4 parts": partial(ddp, parts=4, early=True),
        "DDP, after the last part": partial(ddp, parts=4),
        "DDP, still scaled": partial(ddp, unscale=False),
        "DDP, unscaled first": partial(ddp, unscale=True),
        "FSDP2, norm of the shard": partial(sharded, ours=own),
        "FSDP2, shards added up": partial(sharded, ours=added),
        "FSDP2, clip_grad_norm_": partial(sharded, ours=clip),
        "TP, shards added up": partial(sharded, ours=added, plan=plan),
        "TP, clip_grad_norm_": partial(sharded, ours=clip, plan=plan),
    }
    for name, run in tries.items():  # under TP, all ranks see all samples
        mine = slice(None) if name[0] == "T" else slice(rank, None, world_size)
        net = make_tanh(device)
        norm = run(net, x[mine], y[mine], args.most)
        wrong = off(in_a_row(net), in_a_row(alone))
        if rank == 0:
            say(f"{name:27} norm {norm:9.4f}, {wrong:.0e} off")
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
