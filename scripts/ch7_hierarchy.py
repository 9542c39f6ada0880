"""Chapter 7 - A hierarchy: add up inside a node, then between nodes.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch7_hierarchy.py
"""

import argparse
import os
import re
import signal
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
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

LOG = []  # what this rank has sent and received: (what, peer, bytes)


def move(*messages: tuple, wait: bool = True) -> list[dist.Work]:
    """Start each (isend or irecv, tensor, peer) at once, and log them all."""
    LOG.extend((op.__name__, peer, x.nbytes) for op, x, peer in messages)
    works = dist.batch_isend_irecv([dist.P2POp(*m) for m in messages])
    for work in works if wait else ():
        work.wait()
    return works


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


def around(x: torch.Tensor, ranks: range, steps: range) -> None:
    """Pass W chunks of x around a ring: W - 1 steps add, the next W - 1 copy.

    After W - 1 steps the rank at place p of the ring has the sum of chunk
    p + 1; after 2 (W - 1) steps it has them all.
    """
    size, place = len(ranks), ranks.index(dist.get_rank())
    after, before = ranks[(place + 1) % size], ranks[place - 1]
    chunks = x.tensor_split(size)
    for step in steps:
        out, into = (chunks[(place - step - k) % size] for k in (0, 1))
        found = torch.empty_like(into)
        move((dist.isend, out, after), (dist.irecv, found, before))
        into.copy_(into + found if step < size - 1 else found)


def ring(x: torch.Tensor) -> None:
    """Add up x in a ring of all ranks: 2 (W - 1) steps of n / W bytes."""
    world_size = dist.get_world_size()
    around(x, range(world_size), range(2 * world_size - 2))


def hierarchical(x: torch.Tensor, nodes: int) -> None:
    """Add up inside each node, then a share of it across nodes, then share."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    size = world_size // nodes  # ranks per node
    node, local = divmod(rank, size)
    inside = range(node * size, (node + 1) * size)
    across = range(local, world_size, size)  # one rank of each node
    around(x, inside, range(size - 1))  # reduce_scatter
    mine = x.tensor_split(size)[(local + 1) % size]
    around(mine, across, range(2 * nodes - 2))  # all_reduce
    around(x, inside, range(size - 1, 2 * size - 2))  # all_gather


def check(run: Callable, wanted: Callable, n: int, seed: int, device) -> tuple:
    """Run a collective by hand; return its logs by rank, and its seconds.

    Each rank's sum of whole numbers must have the bits of torch's, and of
    any other numbers, all ranks must have the same bits.
    """
    torch.manual_seed(seed + dist.get_rank())
    x = torch.randn(n, device=device)
    whole = x.mul(100).round()  # sums of these are exact, in any order
    run(x), wanted(result := whole.clone())
    dist.broadcast(rank_0s := x.clone(), 0)
    LOG.clear(), dist.barrier()
    start = time.perf_counter()
    run(whole)
    good = torch.equal(whole[:1], result[:1])  # waits for a GPU
    took = time.perf_counter() - start
    good &= torch.equal(whole, result) and torch.equal(x, rank_0s)
    mine, found = (LOG, took, good), [None]
    dist.all_gather_object(found := found * dist.get_world_size(), mine)
    logs, seconds, good = zip(*found, strict=True)
    if not all(good):
        refuse(f"rank {good.index(False)} has wrong bits: that is a bug")
    return logs, max(seconds)


def replay(logs: list[list], cost: Callable[[int, int, int], float]) -> float:
    """Return when the last rank is done, if a message takes as long as cost.

    cost(source, target, bytes) says how long both ends are busy with it. If
    it is always 1, the result is the number of steps, one after the other.
    """
    now, wire = [0] * len(logs), [0] * len(logs)  # by rank
    mail, left = defaultdict(deque), [deque(log) for log in logs]
    while any(left):
        for rank, log in enumerate(left):
            while log and (log[0][0] == "isend" or mail[log[0][1], rank]):
                what, peer, num_bytes = log.popleft()
                if what == "isend":
                    start = max(now[rank], wire[rank])
                    wire[rank] = start + cost(rank, peer, num_bytes)
                    mail[rank, peer].append(start)
                else:
                    start = max(now[rank], mail[peer, rank].popleft())
                    now[rank] = start + cost(peer, rank, num_bytes)
    return max(now + wire)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    for flag, default in {"--kb": 4000, "--slower": 9, "--seed": 0}.items():
        parser.add_argument(flag, type=int, default=default)
    parser.add_argument("--nodes", type=int, help="default: 2 if W is even")
    return in_range(parser.parse_args(argv))


def main() -> None:
    """Compare a flat ring with a hierarchy, by what crosses between nodes."""
    args = parse_args()
    rank, world_size, device = setup(args)
    nodes = args.nodes or 1 + (world_size % 2 == 0)
    if world_size % nodes:
        refuse(f"--nodes {nodes}: must divide the {world_size} ranks")
    n, size = 1000 * args.kb, world_size // nodes
    runs = {"ring": ring, "hierarchical": partial(hierarchical, nodes=nodes)}

    def cost(source, target, num_bytes):  # in units of n / B, inside a node
        out = source // size != target // size
        return num_bytes / n * (args.slower if out else 1)

    for name, run in runs.items():
        sizes = n // 4, args.seed, device
        logs, _ = check(run, dist.all_reduce, *sizes)
        out = [0] * nodes  # what leaves each node
        for source, log in enumerate(logs):
            for what, peer, num_bytes in log:
                if what == "isend" and source // size != peer // size:
                    out[source // size] += num_bytes
        if rank == 0:
            say(
                f"{name}: {replay(logs, lambda *_: 1)} steps, "
                f"{max(out) / n:.4g} n leave a node, "
                f"{replay(logs, cost):.4g} n / B in all"
            )
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
