"""Chapter 8 - DDP from scratch: all of it.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_ddp_by_hand.py
"""

import argparse
import gc
import os
import re
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
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


class Bucket:
    """Gradients in one flat tensor; its tail says which ranks have them."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        sizes = [*(p.numel() for p in params), len(params)]
        sizes.append(dist.get_world_size())  # the tail: counts, then ranks
        self.flat = params[0].new_zeros(sum(sizes))
        *parts, counts, self.ranks = self.flat.split(sizes)
        triples = zip(params, parts, counts, strict=True)
        self.parts = {p: (x.view_as(p), count) for p, x, count in triples}

    def put(self, p: nn.Parameter) -> None:
        """Put in this rank's part of the mean: zeros without a gradient."""
        part, count = self.parts[p]
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        torch.mul(grad, 1 / dist.get_world_size(), out=part)
        count.fill_(p.grad is not None)


class DDP(nn.Module):
    """Make a module a replica, and average its gradients during backward."""

    def __init__(self, module: nn.Module, caps_mb: tuple = (1, 25)) -> None:
        super().__init__()
        self.module, self.caps_mb, self.arrived = module, caps_mb, {}
        self.sync, self.averages, self.works = True, False, []
        self.params = [p for p in module.parameters() if p.requires_grad]
        tensors = [*module.parameters(), *module.buffers()]
        kinds = [(t.shape, t.dtype, t.requires_grad) for t in tensors]
        dist.all_gather_object(ranks := [None] * dist.get_world_size(), kinds)
        if others := [r for r, found in enumerate(ranks) if found != ranks[0]]:
            raise ValueError(f"ranks {others} have other tensors than rank 0")
        if not self.params:
            raise ValueError("no parameter requires a gradient: use no DDP")
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)
        for p in self.params:
            p.register_post_accumulate_grad_hook(self.ready)
        self.fill(self.params, [float("inf")])

    def fill(self, params: list[nn.Parameter], caps_mb) -> None:
        """Cut parameters into buckets, each full as soon as it has its cap."""
        groups = [[]]
        for p in params:
            cap = caps_mb[min(len(groups), len(caps_mb)) - 1] * 2**20
            if sum(q.nbytes for q in groups[-1]) >= cap:
                groups.append([])
            groups[-1].append(p)
        self.buckets = [Bucket(group) for group in groups]
        self.home = {p: b for b in self.buckets for p in b.parts}

    def forward(self, *args, **kwargs):
        """Run the module; its backward averages, unless in no_sync()."""
        if torch.is_grad_enabled():
            for work in self.works:  # of a backward that has raised
                work.wait()
            self.averages, self.arrived, self.works = self.sync, {}, []
        return self.module(*args, **kwargs)

    def ready(self, param: nn.Parameter) -> None:
        """Put a gradient into its bucket, and send what is complete."""
        if self.averages:
            if not self.arrived:  # finish() will run when backward ends
                engine = torch.autograd.Variable._execution_engine
                engine.queue_callback(self.finish)
            self.home[param].put(param)
            self.arrived[param] = True
            self.send()

    def send(self, batches: int = 1) -> None:
        """Send the buckets that are complete, in one order on all ranks."""
        for bucket in self.buckets[len(self.works) :]:
            if not bucket.parts.keys() <= self.arrived.keys():
                break
            bucket.ranks.zero_()[dist.get_rank()] = batches
            self.works.append(dist.all_reduce(bucket.flat, async_op=True))

    def finish(self, batches: int = 1) -> list[int]:
        """Send the rest, set all .grad; return the ranks that had a batch."""
        for p in [p for p in self.params if p not in self.arrived]:
            self.home[p].put(p)
            self.arrived[p] = True
        self.send(batches)
        for work, bucket in zip(self.works, self.buckets, strict=True):
            work.wait()
            ranks = bucket.ranks.nonzero().flatten().tolist()
            if 0 < len(ranks) < dist.get_world_size():
                bucket.flat.mul_(dist.get_world_size() / len(ranks))
            for p, (part, count) in bucket.parts.items():
                p.grad = part if count else p.grad  # none has it: as before
        for buffer in self.module.buffers() if ranks else ():
            dist.broadcast(buffer, ranks[0])
        came, self.arrived, self.works = [*self.arrived], {}, []
        self.averages = bool(torch._C._current_autograd_node())  # nested?
        if self.caps_mb:  # once, in the order of rank 0's gradients
            number = {p: n for n, p in enumerate(self.params)}
            dist.broadcast_object_list(order := [number[p] for p in came], 0)
            self.fill([self.params[n] for n in order], self.caps_mb)
            self.caps_mb = None
        return ranks

    def shadow(self) -> bool:
        """Join a step without a batch; return False if nobody has one."""
        self.zero_grad()
        return bool(self.finish(batches=0))

    @contextmanager
    def no_sync(self):
        """Add up gradients here; the next pass outside sends their sum."""
        self.sync = False
        try:
            yield
        finally:
            self.sync = True


def compare(ours) -> None:
    """Train a network on digits wrapped in ours, and one wrapped in torch's.

    Print a step of ours: g is a gradient that is ready, M a message that
    leaves.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    parser.add_argument("--steps", type=int, default=20)
    rank, _, device = setup(args := in_range(parser.parse_args()))
    log, models, all_reduce = [], [], dist.all_reduce
    dist.all_reduce = lambda *a, **k: log.append("M") or all_reduce(*a, **k)
    for wrap in nn.parallel.DistributedDataParallel, ours:
        torch.manual_seed(rank)  # other weights on each, until they are sent
        train_set, _, net = make_task(1440)
        for p in net.parameters():
            p.register_post_accumulate_grad_hook(lambda _: log.append("g"))
        models.append(wrap(net.to(device)))
        optimizer = torch.optim.SGD(net.parameters(), 0.05, 0.9)
        for _ in range(args.steps):
            batch = train_set[torch.randint(1440, (32,))]
            x, y = (part.to(device) for part in batch)
            loss = nn.functional.cross_entropy(models[-1](x), y)
            optimizer.zero_grad()
            log.clear()
            loss.backward()
            if hasattr(models[-1], "average"):
                models[-1].average()
            optimizer.step()
    dist.all_reduce = all_reduce
    pairs = zip(*(model.parameters() for model in models), strict=True)
    gap = max((a - b).abs().max().item() for a, b in pairs)
    dist.all_reduce(loss := loss.detach(), dist.ReduceOp.AVG)
    finite(loss, f"after {args.steps} steps")
    if rank == 0:
        say(f"one step: {' '.join(log)}; {loss=:.4f}")
        say(f"largest difference from torch's weights: {gap:g}")
    models.clear()  # torch 2.13 may abort at exit if DDP's last work lives
    gc.collect()
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
    compare(lambda net: DDP(net, caps_mb=(0.1, 0.3)))
