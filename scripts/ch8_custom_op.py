"""Chapter 8 - DDP from scratch: a collective as an operator of torch's.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_custom_op.py
"""

import argparse
import os
import re
import signal
import sys
import threading
import time
import warnings
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
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.autograd import gradcheck
from torch.library import custom_op, opcheck


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


def get_rows(x: torch.Tensor) -> torch.Tensor:
    """Return a row from each rank: (n,) becomes (W, n)."""
    rows = x.new_empty(dist.get_world_size(), *x.shape)
    dist.all_gather(list(rows), x.contiguous())
    return rows


def get_sum(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of all ranks' row r, on rank r: (W, n) becomes (n,)."""
    row = x.new_empty(x.shape[1:])
    dist.reduce_scatter(row, [*x.contiguous()])
    return row


def total(x: torch.Tensor) -> torch.Tensor:
    """Return the sum over all ranks."""
    dist.all_reduce(y := x.contiguous().clone())
    return y


all_gather = custom_op("by_hand::all_gather", get_rows, mutates_args=())
reduce_scatter = custom_op("by_hand::reduce_scatter", get_sum, mutates_args=())

# What comes out, without any message: a compiler runs these.
all_gather.register_fake(lambda x: torch.stack([x] * dist.get_world_size()))
reduce_scatter.register_fake(lambda x: x.new_empty(x.shape[1:]))

# Each is the other's backward.
all_gather.register_autograd(lambda ctx, grad: reduce_scatter(grad))
reduce_scatter.register_autograd(lambda ctx, grad: all_gather(grad))


def function(forward: Callable, backward: Callable) -> Callable:
    """Return the same as a Function: what autograd alone knows."""
    calls = {"forward": lambda _, x: forward(x)}
    calls["backward"] = lambda _, grad: backward(grad)
    parts = {name: staticmethod(call) for name, call in calls.items()}
    return type("Function", (torch.autograd.Function,), parts).apply


class Joint(torch.autograd.Function):
    """See what all ranks call as one function of all inputs, (W, ...)."""

    @staticmethod
    def forward(ctx, inputs: torch.Tensor, call: Callable) -> torch.Tensor:
        ctx.x = inputs[dist.get_rank()].detach().requires_grad_()
        with torch.enable_grad():
            ctx.y = call(ctx.x)
        return get_rows(ctx.y.detach())

    @staticmethod
    def backward(ctx, grads: torch.Tensor) -> tuple:
        grad = grads[dist.get_rank()]
        (mine,) = torch.autograd.grad(ctx.y, ctx.x, grad, retain_graph=True)
        return get_rows(mine), None


def compiled(call: Callable, shape: tuple, device) -> str:
    """Compile a call whole, and its backward; return what is in the graphs."""
    torch._dynamo.reset()
    graphs = []

    def note(graph, _):
        """Compile nothing; note the operations, without their overloads."""
        nodes = [n for n in graph.graph.nodes if n.op == "call_function"]
        graphs.append(" ".join(f"{n.target}".split(".")[-2] for n in nodes))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=note)
    x = torch.ones(shape, device=device, requires_grad=True)
    try:
        y = torch.compile(call, backend=backend, fullgraph=True)(x)
        y.sum().backward()
    except torch._dynamo.exc.Unsupported as error:
        return f"refused: {type(error).__name__}"
    return ", backward: ".join(graphs)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    parser.add_argument("--numbers", type=int, default=3, help="in a row")
    return in_range(parser.parse_args(argv))


def main() -> None:
    """Check both operators, then see what a compiler makes of them."""
    args = parse_args()
    rank, world_size, device = setup(args)
    warnings.filterwarnings("ignore", "Dynamo does not know")
    torch.manual_seed(0)  # equal inputs on all ranks
    row, ops = (args.numbers,), (all_gather, reduce_scatter)
    for op, shape in zip(ops, (row, (world_size, *row)), strict=True):
        x = torch.randn(world_size, *shape, dtype=torch.double).to(device)
        parts = opcheck(op, (x[rank].requires_grad_(),))
        inputs = x.requires_grad_(), lambda x, op=op: op(x.sin())
        gradcheck(Joint.apply, inputs)  # raises if a backward is wrong
        if rank == 0:
            say(f"{op._name}: {len(parts)} parts of opcheck, and gradcheck")
    sums, rows = function(total, total), function(get_rows, get_sum)
    for name, call in {
        "operator": lambda x: all_gather(x.sin()),
        "Function with all_reduce": lambda x: sums(x.sin()),
        "Function with all_gather": lambda x: rows(x.sin()),
        "operator, result not used": lambda x: (all_gather(x), x.cos())[1],
    }.items():
        found = compiled(call, row, device)
        if rank == 0:
            say(f"{name}: {found}")
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
