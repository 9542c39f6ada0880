"""Chapter 8 - DDP from scratch: talk only now and then.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_local_sgd.py
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


class Block(nn.Module):
    """Each byte looks at those before it, then goes through a small net."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.mix = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor, mask=None) -> torch.Tensor:
        """Map (B, T, dim) to the same; a mask says who may look at whom."""
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        heads = (p.unflatten(-1, (self.heads, -1)) for p in parts)
        seen = nn.functional.scaled_dot_product_attention(
            *(h.transpose(1, 2) for h in heads),  # (B, heads, T, dim / heads)
            attn_mask=mask,
            is_causal=mask is None,
        )
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A small GPT: it predicts the next byte of a text."""

    def __init__(self, dim=64, layers=2, heads=4, context=64) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, dim)
        self.places = nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 256)

    def forward(self, x: torch.Tensor, mask=None, places=None):
        """Map bytes (B, T) to logits (B, T, 256)."""
        if places is None:
            places = torch.arange(x.shape[1], device=x.device)
        x = self.bytes(x) + self.places(places)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def read_text() -> tuple[torch.Tensor, torch.Tensor]:
    """Read "Frankenstein" as bytes: nine tenths to train on, one to test."""
    path = os.path.join(os.path.dirname(__file__), "frankenstein.txt")
    try:
        with open(path, "rb") as file:
            text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        why = f"{path}: {getattr(error, 'strerror', error)}"
        refuse(f"{why}: put the book's copy beside this script")
    return text.split([len(text) - len(text) // 10, len(text) // 10])


def cut(text: torch.Tensor, starts: torch.Tensor, context: int):
    """Return windows of the text, (B, T), and the byte after each byte."""
    at = starts[:, None] + torch.arange(context)
    return text[at].long(), text[at + 1].long()


def loss_on(net, text: torch.Tensor, starts, device) -> torch.Tensor:
    """Return the mean loss per byte on windows of 64 bytes of a text."""
    x, y = (part.to(device) for part in cut(text, starts, 64))
    return nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())


def test_loss(net: nn.Module, text: torch.Tensor, device) -> float:
    """Return the loss on a text's first 128 windows, the same on all ranks."""
    with torch.no_grad():
        loss = loss_on(net, text, 64 * torch.arange(128), device)
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    return loss.item()


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=20, help="of local steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--outer-lr", type=float, default=0.7)
    return in_range(parser.parse_args(argv))


class Outer:
    """Let the ranks train alone, and bring them together now and then.

    How far they went on average is the gradient of a second optimizer. With
    lr 1 and no momentum it steps to the mean of their weights.
    """

    def __init__(self, net: nn.Module, lr: float, momentum: float) -> None:
        self.net, self.num_bytes = net, 0
        self.common = [p.detach().clone() for p in net.parameters()]
        how = {"momentum": momentum, "nesterov": momentum > 0}
        self.optimizer = torch.optim.SGD(self.common, lr, **how)

    @torch.no_grad()
    def step(self) -> None:
        """Take an outer step on all ranks, and go on from there."""
        for old, new in zip(self.common, self.net.parameters(), strict=True):
            old.grad = old - new
            dist.all_reduce(old.grad, dist.ReduceOp.AVG)
            self.num_bytes += old.nbytes
        self.optimizer.step()
        for old, new in zip(self.common, self.net.parameters(), strict=True):
            new.copy_(old)


def train(every: int, outer: tuple, args, rank: int, device) -> tuple:
    """Train a GPT; return its loss on the test text, and the bytes sent.

    every: so many steps, the ranks take an outer step; 0 means DDP instead.
    """
    text, test = read_text()
    torch.manual_seed(args.seed)
    net = GPT().to(device)
    model = net if every else nn.parallel.DistributedDataParallel(net)
    outer = Outer(net, *outer)
    inner = torch.optim.AdamW(net.parameters(), args.lr)
    torch.manual_seed(args.seed + rank)
    for step in range(1, args.steps + 1):
        inner.zero_grad()
        starts = torch.randint(len(text) - 64, (16,))
        loss_on(model, text, starts, device).backward()
        inner.step()
        if every and step % every == 0:
            outer.step()
    num_bytes = outer.num_bytes
    if not every:
        num_bytes = args.steps * sum(p.nbytes for p in net.parameters())
    return test_loss(net, test, device), num_bytes


def main() -> None:
    """Train in five ways on the same windows of the text."""
    args = parse_args()
    rank, _, device = setup(args)
    if args.steps % args.every:
        refuse(f"--steps {args.steps}: must be a multiple of --every")
    ways = {
        "DDP": (0, (1, 0)),
        "local SGD": (args.every, (1, 0)),
        "DiLoCo": (args.every, (args.outer_lr, 0.9)),
        "at the end": (args.steps, (1, 0)),
        "never": (args.steps + 1, (1, 0)),
    }
    for name, way in ways.items():
        loss, num_bytes = train(*way, args, rank, device)
        finite(torch.tensor(loss), name)
        if rank == 0:
            cost = num_bytes / (args.steps * 16 * 64)
            say(f"{name:10} {cost:6.1f} bytes per token, test {loss=:.3f}")
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
