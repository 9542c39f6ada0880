"""Chapter 6 - Pipeline: a stage on each rank, micro-batches flow through.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch6_pipeline.py
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
from pathlib import Path
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
from torch.distributed import init_device_mesh, pipelining

LENGTH, WIDTH, BLOCKS = 64, 64, 8  # bytes per sample, numbers per byte


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


class Causal(nn.TransformerEncoderLayer):
    """A transformer block in which a byte sees only those before it."""

    def forward(self, x):
        ahead = torch.ones(LENGTH, LENGTH, device=x.device).triu(1).bool()
        return super().forward(x, src_mask=ahead, is_causal=True)


def make_text_task() -> tuple[torch.Tensor, nn.Sequential]:
    """Make pieces of Python's library, and a net to guess the next byte."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = bytearray(b"".join(path.read_bytes() for path in files))
    net = [nn.Embedding(256, WIDTH)]
    net += [Causal(WIDTH, 4, 256, 0, batch_first=True) for _ in range(BLOCKS)]
    net += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.Flatten(0, 1)]
    pieces = torch.frombuffer(text, dtype=torch.uint8).unfold(0, LENGTH + 1, 1)
    return pieces, nn.Sequential(*net)


def into_stages(net: nn.Sequential, num: int) -> list[nn.Sequential]:
    """Split the blocks evenly into num stages, and keep the net's two ends."""
    edges = [0, *(1 + BLOCKS * i // num for i in range(1, num)), len(net)]
    return [net[edges[i] : edges[i + 1]] for i in range(num)]


def build(args, mesh, net: nn.Sequential, device):
    """Keep this rank's stages of net; return them and their schedule."""
    ranks, rank = mesh["pp"].size(), mesh["pp"].get_local_rank()
    twice = args.schedule == "interleaved1f1b"  # rank 0 of 4: stages 0 and 4
    num, stages = ranks * 2 if twice else ranks, []
    pp, options = mesh.get_group("pp"), {"process_group": mesh.get_group("dp")}
    options["find_unused_parameters"] = True  # torch 2.13: GPipe fails without
    if num > BLOCKS:
        refuse(f"{num} stages > {BLOCKS} blocks: start fewer ranks")
    for i, part in list(enumerate(into_stages(net, num)))[rank::ranks]:
        part.to(device)
        if args.dp > 1:  # the copies of *this stage* stay equal
            part = nn.parallel.DistributedDataParallel(part, **options)
        stages += [pipelining.PipelineStage(part, i, num, device, group=pp)]
    kind = pipelining.schedules.get_schedule_class(args.schedule)
    work = stages if twice else stages[0]
    try:
        schedule = kind(work, args.microbatches, nn.functional.cross_entropy)
    except ValueError as error:
        refuse(f"--microbatches: {error}")
    return stages, schedule


def train(args, rank: int, world_size: int, device) -> list[torch.Tensor]:
    """Train this rank's stages; return the losses, if it has the last one."""
    parts = args.dp * args.microbatches
    if world_size % args.dp:
        refuse(f"--dp {args.dp}: must divide {world_size}, the ranks")
    if args.batch_size % parts:
        why = f"must be a multiple of --dp x --microbatches, {parts}"
        refuse(f"--batch-size {args.batch_size}: {why}")
    torch.manual_seed(args.seed)  # all make the same net; each keeps its part
    pieces, net = make_text_task()
    shape = args.dp, world_size // args.dp  # 4 ranks: 1 x 4 or 2 x 2
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp", "pp"))
    replica = mesh["dp"].get_local_rank()
    stages, schedule = build(args, mesh, net, device)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    say(f"replica {replica}, stages {[s.stage_index for s in stages]}")
    optimizer = torch.optim.AdamW(parameters, args.lr)
    dice, losses = torch.Generator().manual_seed(args.seed), []
    for step in range(args.steps):
        pick = torch.randint(len(pieces), (args.batch_size,), generator=dice)
        batch = pieces[pick[replica :: args.dp]].long().to(device)
        x = [batch[:, :-1]] if stages[0].is_first else []  # others receive
        y, found = batch[:, 1:].flatten(), []
        optimizer.zero_grad()
        schedule.step(*x, target=y, losses=found)
        optimizer.step()
        if found:  # on the last stage: a loss per micro-batch
            # Without its graph: gloo divides in a thread, beside autograd.
            loss = torch.stack(found).mean().detach()
            dist.all_reduce(loss, dist.ReduceOp.AVG, mesh.get_group("dp"))
            losses.append(loss)
            if replica == 0 and step % 10 == 9:
                loss = torch.stack(losses[-10:]).mean()
                say(f"steps {step - 8} to {step + 1}: {loss=:.3f}")
        if step % 10 == 9 or step + 1 == args.steps:
            last = losses[-1] if found else 0.0
            last = torch.tensor(float(last), device=device)
            dist.all_reduce(last)  # no number on one rank: none on all
            finite(last, f"{step=}")
    return losses


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    kinds = "gpipe", "1f1b", "interleaved1f1b"
    parser.add_argument("--schedule", choices=kinds, default="1f1b")
    numbers = {"--steps": 20, "--batch-size": 32, "--microbatches": 8}
    numbers |= {"--dp": 1, "--seed": 0, "--lr": 0.003}
    for flag, default in numbers.items():
        how = {"type": type(default), "default": default}
        parser.add_argument(flag, **how, help=f"default: {default}")
    return in_range(parser.parse_args(argv))


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
    train(args := parse_args(), *setup(args))
    gc.collect()  # torch 2.13 may abort at exit if DDP's last work lives
    dist.destroy_process_group()
