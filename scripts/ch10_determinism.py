"""Chapter 10 - The same bits: on any number of ranks, and what that costs.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch10_determinism.py
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
from torch.nn import functional as F

LOG = []  # what this rank has sent and received: (what, peer, bytes)


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


def settle() -> None:
    """Take from chance what one process can: kernels, memory, threads."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA's
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # no kernel is chosen by its time
    torch.set_num_threads(1)  # two would each add up a part


def read_digits(num: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return num handwritten digits."""
    x, y = (torch.as_tensor(a[:num]) for a in load_digits(return_X_y=True))
    return x.float().to(device) / 16, y.to(device)


def lane_gradients(net: nn.Module, x, y, lanes: int) -> torch.Tensor:
    """Return a row for each lane: the gradient of its samples' sum."""
    rows = []
    for own, wanted in zip(x.chunk(lanes), y.chunk(lanes), strict=True):
        loss = F.cross_entropy(net(own), wanted, reduction="sum")
        found = torch.autograd.grad(loss, [*net.parameters()])
        rows.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(rows)


def in_pairs(terms: torch.Tensor) -> torch.Tensor:
    """Add neighbours, then the sums of neighbours, as a tree does."""
    while len(terms) > 1:
        odd = terms[len(terms) // 2 * 2 :]
        terms = torch.cat([terms[:-1:2] + terms[1::2], odd])
    return terms[0]


def move(*messages: tuple, wait: bool = True) -> list[dist.Work]:
    """Start each (isend or irecv, tensor, peer) at once, and log them all."""
    LOG.extend((op.__name__, peer, x.nbytes) for op, x, peer in messages)
    works = dist.batch_isend_irecv([dist.P2POp(*m) for m in messages])
    for work in works if wait else ():
        work.wait()
    return works


def halving(x: torch.Tensor) -> None:
    """Halve what a rank adds up, log2 W times; then double what it has."""
    rank, hop, mine, steps = dist.get_rank(), 1, x, []
    while hop < dist.get_world_size():  # a power of two
        first, second = mine.tensor_split(2)
        if rank % (2 * hop) < hop:
            partner, mine, theirs = rank + hop, first, second
        else:
            partner, mine, theirs = rank - hop, second, first
        found = torch.empty_like(mine)
        move((dist.isend, theirs, partner), (dist.irecv, found, partner))
        mine.add_(found)
        steps.append((partner, mine, theirs))
        hop *= 2
    for partner, mine, theirs in reversed(steps):  # now both have both halves
        move((dist.isend, mine, partner), (dist.irecv, theirs, partner))


def train(args, device, lanes: int, add=None) -> torch.Tensor:
    """Return the weights after some steps; without add, of one process."""
    share = dist.get_rank(), dist.get_world_size()
    rank, world_size = share if add else (0, 1)
    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    x, y = read_digits(args.samples, device)
    weights = [*net.to(device).parameters()]
    draw = torch.Generator().manual_seed(args.seed)
    for step in range(args.steps):
        batch = torch.randint(len(x), (args.batch_size,), generator=draw)
        mine = batch.chunk(world_size)[rank]  # neighbours, as in a tree
        total = in_pairs(lane_gradients(net, x[mine], y[mine], lanes))
        if add:
            add(total)
        finite(total.sum(), f"step {step + 1}")
        parts = total.split([w.numel() for w in weights])
        for w, part in zip(weights, parts, strict=True):
            w.data -= args.lr / args.batch_size * part.view_as(w)
    return torch.cat([w.detach().flatten() for w in weights])


def numbers(defaults: dict, argv: list[str] | None) -> argparse.Namespace:
    """Read flags that are numbers; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    for flag, default in defaults.items():
        how = {"type": type(default), "default": default}
        parser.add_argument(flag, **how, help=f"default: {default}")
    return in_range(parser.parse_args(argv))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; lanes and batch are those of all ranks together."""
    flags = {"--lanes": 8, "--batch-size": 64, "--steps": 20, "--seed": 0}
    args = numbers(flags | {"--samples": 1440, "--lr": 0.5}, argv)
    if args.lanes & (args.lanes - 1):
        refuse(f"--lanes {args.lanes}: must be a power of two")
    if args.batch_size % args.lanes:
        why = f"--batch-size {args.batch_size}: must be a multiple of"
        refuse(f"{why} --lanes, {args.lanes}")
    return args


def main() -> None:
    """Train in three ways; compare the bits with those of one process."""
    args = parse_args()
    rank, world_size, device = setup(args)
    if world_size & (world_size - 1) or world_size > args.lanes:
        why = f"{world_size} ranks: must be a power of two"
        refuse(f"{why}, and at most --lanes, {args.lanes}")
    settle()
    own = args.lanes // world_size
    ways = {  # passes in one process, and on each of the ranks
        "1 pass, all_reduce": (1, 1, dist.all_reduce),
        f"{own} lanes, all_reduce": (args.lanes, own, dist.all_reduce),
        f"{own} lanes, in a tree": (args.lanes, own, halving),
    }
    for name, (alone, passes, add) in ways.items():
        one = train(args, device, alone)
        LOG.clear()
        first = train(args, device, passes, add)
        sent = sum(size for what, _, size in LOG if what == "isend")
        again = torch.equal(first, train(args, device, passes, add))
        same, apart = torch.equal(first, one), (first - one).abs().max()
        bits = f"repeats: {again}, as one process: {same}"
        if rank == 0:
            say(f"{name}: {bits}, {apart:.0e} off")
    size, ring = first.nbytes * args.steps, 2 * (world_size - 1) / world_size
    if rank == 0:
        say(f"the tree sends {sent / size:.4g} n a step, a ring {ring:.4g} n")
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
