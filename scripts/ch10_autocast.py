"""Chapter 10 - Autocast, FSDP2's policy, checkpointing: what has which dtype.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch10_autocast.py
"""

import argparse
import os
import re
import signal
import sys
import threading
import time
from contextlib import nullcontext, suppress
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
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

LOW = torch.bfloat16
AGAIN = "", "checkpoint", "by hand"  # who computes the middle again


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


def dtypes(device, low: torch.dtype) -> dict[torch.dtype, list[str]]:
    """Return what operations give for float32, and for the low dtype."""
    x, ones = torch.rand(4, 8, 8, device=device), torch.ones(8, device=device)
    zeros = torch.zeros(4, 8, device=device, dtype=torch.long)
    ops = {
        "linear": nn.Linear(8, 8).to(device),
        "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
        "softmax": lambda x: x.softmax(-1),
        "layer_norm": lambda x: F.layer_norm(x, (8,), ones, ones),
        "sum": torch.sum,
        "cross_entropy": lambda x: F.cross_entropy(x, zeros),
        "mse_loss": lambda x: F.mse_loss(x, x),
        "prod": torch.prod,
        "x + float32": lambda x: x + ones,
    }
    found = {}  # names by (dtype from float32, dtype from low)
    with torch.autocast(device.type, low):
        for name, op in ops.items():
            kinds = op(x).dtype, op(x.to(low)).dtype
            found.setdefault(kinds, []).append(name)
    return found


class Net(nn.Module):
    """A net that notes in which dtype its middle layer computes, each time."""

    def __init__(self, args, again: str) -> None:
        super().__init__()
        torch.manual_seed(args.seed)
        self.again, self.seen, wide = again, [], args.width
        self.first, self.middle = nn.Linear(16, wide), nn.Linear(wide, wide)
        self.places, self.last = nn.Embedding(1, wide), nn.Linear(wide, 4)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """Return the middle layer's output."""
        self.seen.append(str((y := self.middle(x)).dtype))
        return y.tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keep the middle's activations, or compute them again in backward."""
        x = self.first(x) + self.places.weight  # bf16 + float32
        if self.again == "checkpoint":
            x = checkpoint(self.compute, x, use_reentrant=False)
        elif self.again == "by hand":
            x = Recompute.apply(self.compute, x, *self.middle.parameters())
        else:
            x = self.compute(x)
        return self.last(x)


class Recompute(torch.autograd.Function):
    """Checkpoint a function, and forget that autocast was on."""

    @staticmethod
    def forward(ctx, function, x, *weights):
        """Compute without a graph; keep the input only."""
        ctx.function, ctx.weights = function, weights
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, slope):
        """Compute again, with a graph, and go back through it."""
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():  # backward runs outside of autocast
            y = ctx.function(x)
        found = torch.autograd.grad(y, (x, *ctx.weights), slope.to(y.dtype))
        return None, *found


def in_a_row(net: nn.Module) -> torch.Tensor:
    """Return all gradients of a net, in a row; of shards, all of them."""
    found = [p.grad for p in net.parameters()]
    found = [g.full_tensor() if hasattr(g, "to_local") else g for g in found]
    return torch.cat([g.flatten() for g in found])


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    """Return how far a tensor is off, as a share of the right one's length."""
    return ((found - right).norm() / right.norm()).item()


def train(args, device, again="", low=None, policy=None) -> tuple:
    """Return the averaged gradient, and the dtypes in the middle."""
    net = Net(args, again).to(device)
    if policy:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        fully_shard(net, mesh=mesh, mp_policy=policy)
    draw = torch.Generator().manual_seed(args.seed + dist.get_rank())
    x = torch.randn(args.samples, 16, generator=draw).to(device)
    with torch.autocast(device.type, low) if low else nullcontext():
        loss = net(x).float().square().mean()
    loss.backward()
    found = in_a_row(net)
    if not policy:  # FSDP2 has averaged it
        dist.all_reduce(found, dist.ReduceOp.AVG)
    return found, net.seen


def numbers(defaults: dict, argv: list[str] | None) -> argparse.Namespace:
    """Read flags that are numbers; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    for flag, default in defaults.items():
        how = {"type": type(default), "default": default}
        parser.add_argument(flag, **how, help=f"default: {default}")
    return in_range(parser.parse_args(argv))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; --samples are per rank."""
    return numbers({"--samples": 256, "--width": 64, "--seed": 0}, argv)


def main() -> None:
    """Ask operations for their dtypes, then compare gradients with fp32's."""
    args = parse_args()
    rank, _, device = setup(args)
    tell = say if rank == 0 else lambda _: None
    for kinds, names in dtypes(device, LOW).items():
        tell(f"{', '.join(names)}: {kinds[0]} and {kinds[1]}")
    exact, plain = (train(args, device, low=low)[0] for low in (None, LOW))
    tries = {f"autocast {a}".strip(): {"again": a, "low": LOW} for a in AGAIN}
    for name, reduce in ("float32", torch.float32), ("bf16", LOW):
        policy = MixedPrecisionPolicy(LOW, reduce)
        tries[f"FSDP2, reduced in {name}"] = {"policy": policy}
    for name, how in tries.items():
        found, seen = train(args, device, **how)
        tell(f"{name}: {' then '.join(seen)}, {off(found, exact):.2e} off")
        if how.get("again"):
            tell(f"{name}: {off(found, plain):.2e} off from plain autocast")
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
