"""Chapter 3 - Exact resume: stop anywhere, go on as if nothing had happened.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch3_resume.py
"""

import argparse
import atexit
import gc
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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


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


def save(path: str, state: dict) -> None:
    """Write a new file, then rename it: no crash can break the old one."""
    try:
        with open(f"{path}.new", "wb") as file:  # buffered: it writes it all
            torch.save(state, file)
            file.flush()
            os.fsync(file)
        os.replace(f"{path}.new", path)
    except BaseException as error:  # a full disk, Ctrl-C: leave nothing half
        with suppress(OSError):
            os.remove(f"{path}.new")
        for cause in error, error.__context__:
            if isinstance(cause, OSError):
                why = f"{path} is not saved: {cause.strerror}"
                refuse(f"{why}: make room or name another")
        raise


def make_digits() -> tuple[TensorDataset, nn.Module]:
    """Make handwritten digits, and a network that draws random numbers."""
    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    net = nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 10))
    return TensorDataset(x[:240].float() / 16, y[:240]), net


def collect(parts: dict, epoch: int, step: int, gen, first) -> dict:
    """Gather all that the next step depends on; every rank calls it."""
    rng = [None] * dist.get_world_size()  # each rank has numbers of its own
    dist.all_gather_object(rng, [first, *(d.get_rng_state() for d in gen)])
    states = {name: part.state_dict() for name, part in parts.items()}
    return states | {"rng": rng, "epoch": epoch, "step": step}


def restore(path: str, parts: dict, forget: str) -> dict:
    """Fill the parts from a file; return what is in it."""
    state = torch.load(path, "cpu", weights_only=True)
    if (num := len(state["rng"])) != dist.get_world_size():
        refuse(f"{num} ranks wrote {path}: start as many")
    state.pop(forget, None)
    for name in parts.keys() & state.keys():
        parts[name].load_state_dict(state[name])
    return state


def train(args, device, stop=0, resume=False, forget="") -> torch.Tensor:
    """Train to the end, or save and stop after a step; return each loss."""
    rank = dist.get_rank()
    torch.manual_seed(rank)  # another dropout on each rank
    data, net = make_digits()
    sampler = DistributedSampler(data)
    own = torch.Generator()  # else a loader draws from torch's each epoch
    loader = DataLoader(data, 20, None, sampler, generator=own)
    gen = [torch]
    if device.type != "cpu":
        gen.append(torch.get_device_module(device))
    optimizer = torch.optim.SGD(net.to(device).parameters(), 0.1, 0.9)
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 9)
    parts = {"model": net, "optim": optimizer, "schedule": decay}
    state = restore(args.checkpoint, parts, forget) if resume else {}
    begin, done = state.get("epoch", 0), state.get("step", 0)
    first, *later = state["rng"][rank] if "rng" in state else [own.get_state()]
    own.set_state(first)  # sooner: the loader draws from it each epoch
    ddp, losses = nn.parallel.DistributedDataParallel(net), []
    for epoch in range(begin, 3):
        sampler.set_epoch(epoch)
        first = own.get_state()
        for step, (x, y) in enumerate(loader, 1):
            if (epoch, step) <= (begin, done):
                continue
            while later:  # not sooner: making the model drew numbers
                gen[len(later) - 1].set_rng_state(later.pop())
            loss = nn.functional.cross_entropy(ddp(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            decay.step()
            losses.append(loss.detach())
            if len(losses) == stop:
                state = collect(parts, epoch, step, gen, first)
                if rank == 0:
                    save(args.checkpoint, state)
                dist.barrier()  # nobody reads before rank 0 has written
                return torch.stack(losses)
    return torch.stack(losses)


def main(argv: list[str] | None = None) -> None:
    """Train; stop and resume, with all pieces, and without each of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    parser.add_argument("--stop", type=int, default=8, help="this step")
    parser.add_argument("--checkpoint", default="ch3_resume.pt", help="a file")
    parser.add_argument("--overwrite", action="store_true", help="replace it")
    args = parser.parse_args(argv)
    probe(args.checkpoint)
    if os.path.exists(args.checkpoint) and not args.overwrite:
        refuse(f"{args.checkpoint} exists: --overwrite it, or name another")
    rank, world_size, device = setup(args)
    num_steps = 3 * math.ceil(math.ceil(240 / world_size) / 20)
    if not 0 < args.stop < num_steps:
        refuse(f"--stop {args.stop}: must be 1 to {num_steps - 1}")
    whole = train(args, device)
    train(args, device, stop=args.stop)
    for piece in ["nothing", *torch.load(args.checkpoint, "cpu")]:
        rest = train(args, device, resume=True, forget=piece)
        off = (rest[: len(whole) - args.stop] - whole[args.stop :]).abs()
        dist.all_reduce(off, dist.ReduceOp.MAX)
        step = args.stop + int(off.bool().int().argmax())
        text = f"off by {off.max():.4f}, from step {step}"
        if rank == 0:
            say(f"lost {piece}: {text if off.any() else 'equal to the bit'}")


# The rest stands in every script: a job that cannot go on ends in a sentence.
def refuse(why: str) -> NoReturn:
    """End all ranks with one sentence: all found the same fault."""
    started = "TORCHELASTIC_USE_AGENT_STORE" in os.environ  # by a launcher
    if started and os.environ.get("LOCAL_RANK") != "0":
        time.sleep(9)  # rank 0 says it; then the launcher ends this rank
    if started and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # or exit may abort
    raise SystemExit(why)


def stop(*_) -> NoReturn:
    """End silently after Ctrl-C, as soon as save() has tidied up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # torchrun sends another
    sys.excepthook = lambda *_: None  # if torch turns the exit into an error
    atexit.register(os._exit, 130)  # no destructor of torch's may complain
    sys.exit(130)


def put(line: str) -> None:
    """Print a line in one write; end with a sentence if stdout fails."""
    try:
        print(f"{line}\n", end="", flush=True)
    except OSError as error:  # a full disk, or `| head`, which left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # no second try at exit
        why = f"cannot print to stdout: {error.strerror}"
        refuse(f"{why}: ended")


def probe(path: str) -> None:
    """Refuse, before training, a path that save() could not write."""
    mine = f"{path}.{os.getpid()}"
    try:
        for name in path, f"{path}.new":
            if not path or os.path.exists(name) != os.path.isfile(name):
                raise OSError(0, "not the name of a file")
        os.close(os.open(mine, os.O_CREAT | os.O_EXCL))
        os.remove(mine)
    except OSError as error:
        why = f"--checkpoint {path or repr(path)}: {error.strerror}"
        refuse(f"{why}: name a file that can be written")


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
    signal.signal(signal.SIGINT, stop)
    main()
    gc.collect()  # torch 2.13 may abort at exit if DDP's last work lives
    dist.destroy_process_group()
