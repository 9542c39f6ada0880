"""Chapter 10 - Accumulate gradients: k small batches as a large one, or not.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch10_accumulate.py
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


def make_around(middle) -> nn.Module:
    """Return a small net in float64, with a layer of choice in the middle."""
    torch.manual_seed(0)
    layers = nn.Linear(8, 16), middle(16), nn.Tanh(), nn.Linear(16, 1)
    return nn.Sequential(*layers).double()


def make_texts(num: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Return inputs (num, 8), targets, and how many tokens each has."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 8, generator=draw, dtype=torch.double)
    y = x[:, :1].sin() + 0.1 * x[:, 1:2]
    tokens = torch.randint(1, 100, (num, 1), generator=draw)
    return x, y, tokens.double()


def each(out, y, tokens, totals) -> torch.Tensor:
    """Return the mean over samples, as a part of the mean over all."""
    return (out - y).square().sum() / totals[0]


def forgotten(out, y, tokens, totals) -> torch.Tensor:
    """Return a mean over this part, so that k of them add up to k times it."""
    return each(out, y, tokens, totals) * totals[2]


def mean_of_means(out, y, tokens, totals) -> torch.Tensor:
    """Return the mean over this part's tokens, times the part's share."""
    mean = (tokens * (out - y).square()).sum() / tokens.sum()
    return mean * len(y) / totals[0]


def by_tokens(out, y, tokens, totals) -> torch.Tensor:
    """Return this part's share of the mean over the tokens of all parts."""
    return (tokens * (out - y).square()).sum() / totals[1]


def in_a_row(net: nn.Module) -> torch.Tensor:
    """Return all gradients of a net, in a row; of shards, all of them."""
    found = [p.grad for p in net.parameters()]
    found = [g.full_tensor() if hasattr(g, "to_local") else g for g in found]
    return torch.cat([g.flatten() for g in found])


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    """Return how far a tensor is off, as a share of the right one's length."""
    return ((found - right).norm() / right.norm()).item()


def at_once(net: nn.Module, data, loss) -> torch.Tensor:
    """Return the gradient of one process that has all samples in a batch."""
    x, y, tokens = data
    torch.manual_seed(1)  # of dropout
    loss(net(x), y, tokens, (len(x), tokens.sum(), 1)).backward()
    return in_a_row(net)


def in_parts(net, data, loss, num_parts: int, no_sync: bool = True) -> tuple:
    """Return DDP's gradient after k passes, and how many reductions it did."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    totals = len(data[0]), data[2].sum(), num_parts  # of all ranks' samples
    torch.manual_seed(1)
    ddp, hooks = nn.parallel.DistributedDataParallel(net), []

    def average(_, bucket):
        hooks.append(bucket.buffer().numel())
        work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return work.then(lambda done: done.value()[0] / world_size)

    ddp.register_comm_hook(None, average)
    mine = [part[rank::world_size].chunk(num_parts) for part in data]
    for place, part in enumerate(zip(*mine, strict=True)):
        last = place == num_parts - 1
        with ddp.no_sync() if no_sync and not last else nullcontext():
            out = ddp(part[0])  # no_sync looks at the forward, too
            (world_size * loss(out, *part[1:], totals)).backward()
    return in_a_row(net), len(hooks)


def numbers(defaults: dict, argv: list[str] | None) -> argparse.Namespace:
    """Read flags that are numbers; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    for flag, default in defaults.items():
        how = {"type": type(default), "default": default}
        parser.add_argument(flag, **how, help=f"default: {default}")
    return in_range(parser.parse_args(argv))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; --samples are those of all ranks."""
    return numbers({"--parts": 4, "--samples": 64, "--seed": 0}, argv)


def main() -> None:
    """Compare W ranks x k parts with one process that has the large batch."""
    args = parse_args()
    rank, world_size, device = setup(args)
    num = world_size * args.parts
    if args.samples % num or args.samples < 2 * num:
        why = f"--samples {args.samples}: must be a multiple of {num}"
        refuse(f"{why}, ranks x --parts, and at least twice as many")
    data = [part.to(device) for part in make_texts(args.samples, args.seed)]
    tries = {
        "plain": (nn.Identity, each),
        "plain, not divided by k": (nn.Identity, forgotten),
        "layer norm": (nn.LayerNorm, each),
        "group norm": (partial(nn.GroupNorm, 4), each),
        "batch norm": (nn.BatchNorm1d, each),
        "batch norm, frozen": (lambda n: nn.BatchNorm1d(n).eval(), each),
        "dropout": (lambda _: nn.Dropout(0.1), each),
        "tokens, mean of means": (nn.Identity, mean_of_means),
        "tokens, all counted": (nn.Identity, by_tokens),
    }
    for name, (middle, loss) in tries.items():
        whole = at_once(make_around(middle).to(device), data, loss)
        net = make_around(middle).to(device)
        parts, count = in_parts(net, data, loss, args.parts)
        if rank == 0:
            say(f"{name:25} {off(parts, whole):.0e} off, reduced {count} x")
    net = make_around(nn.Identity).to(device)
    parts, count = in_parts(net, data, by_tokens, args.parts, no_sync=False)
    if rank == 0:
        wrong = f"{off(parts, whole):.0e} off, reduced {count} x"
        say(f"{'the last, without no_sync':25} {wrong}")
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
