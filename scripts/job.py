"""What a job owes its user, whatever it trains. Every script here imports it.

It ends in one sentence if something is wrong, and not in W tracebacks. No rank
lives on when its launcher is gone. All ranks have the same flags, or none
trains. Copy this file along with a script, or download the script as one file.
"""

import argparse
import atexit
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

unfinished = set()  # paths of files that are being written


def stop(*_) -> NoReturn:
    """End on Ctrl-C: at once, without a traceback, without half a file."""
    for path in unfinished:
        with suppress(OSError):
            os.remove(path)
    os._exit(130)  # 128 + SIGINT, as a shell would say


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


# Importing torch takes seconds. Ctrl-C may come meanwhile, or a launcher die,
# so a script imports this module first. (A notebook is no script.)
MAIN = getattr(sys.modules["__main__"], "__file__", None) or ""
HERE = os.path.dirname(os.path.abspath(__file__))
if MAIN and os.path.dirname(os.path.abspath(MAIN)) == HERE:
    signal.signal(signal.SIGINT, stop)
    atexit.register(gc.freeze)  # no search for garbage at the end: 1 s
    if "TORCHELASTIC_USE_AGENT_STORE" in os.environ:  # started by torchrun
        watch(os.getppid())
elif "PARENT_PID" in os.environ:  # a rank that ch5_ddp_spawn.py has spawned
    signal.signal(signal.SIGINT, stop)
    atexit.register(gc.freeze)
    watch(int(os.environ.pop("PARENT_PID")))  # its own children have another

gc.disable()  # nothing is garbage yet, and the search would take a while
import torch
import torch.distributed as dist

gc.freeze()  # what torch has made stays
gc.enable()


def refuse(why: str) -> NoReturn:
    """End all ranks with one sentence: all found the same fault."""
    started = "TORCHELASTIC_USE_AGENT_STORE" in os.environ  # by a launcher
    if started and os.environ.get("LOCAL_RANK") != "0":
        time.sleep(9)  # rank 0 says it; then the launcher ends this rank
    if started and dist.is_initialized():
        dist.destroy_process_group()  # or exit may abort
    raise SystemExit(why)


def put(line: str) -> None:
    """Print a line in one write; end with a sentence if stdout fails."""
    try:
        print(f"{line}\n", end="", flush=True)
    except OSError as error:  # a full disk, or `| head`, which left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # no second try at exit
        refuse(f"cannot print to stdout: {error.strerror}: ended")


def say(text: str) -> None:
    """Print one line in one write, so that two ranks' lines never merge."""
    put(f"[rank {dist.get_rank()}/{dist.get_world_size()}] {text}")


def finite(loss: torch.Tensor, where: str) -> None:
    """End all ranks if the loss, which is the same on all, is not finite."""
    if not loss.isfinite():
        refuse(f"{where}: the loss is {loss.item()}: start with a lower --lr")


class Flags(argparse.ArgumentParser):
    """Read a script's flags; refuse what is impossible in one sentence."""

    def __init__(self, doc: str, **numbers: float) -> None:
        """Take the script's docstring, and its numbers' defaults by name."""
        super().__init__(description=doc.splitlines()[0])
        for name, default in numbers.items():
            how = {"type": type(default), "help": f"default: {default}"}
            flag = "--" + name.replace("_", "-")
            self.add_argument(flag, default=default, **how)

    def error(self, message: str) -> NoReturn:
        """Say one sentence, not the usage once per rank."""
        refuse(message)

    def parse_args(self, argv=None, namespace=None) -> argparse.Namespace:
        """Return the values, if they are possible."""
        args = super().parse_args(argv, namespace)
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


def launched() -> timedelta:
    """Check what torchrun has set; return how long a collective may take."""
    if "LOCAL_RANK" not in os.environ:  # started with python: say how
        raise SystemExit(sys.modules["__main__"].__doc__)
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
    if not re.fullmatch(r"\d{1,7}(\.\d+)?", text) or float(text) == 0:
        refuse(f"GROUP_TIMEOUT_S {text!r}: must be seconds, above 0")
    gpu = torch.accelerator.current_accelerator(check_available=True)
    num_gpus = torch.accelerator.device_count()
    if gpu and gpu.type != "mps" and num > num_gpus:
        why = f"{num} ranks on this machine, but {num_gpus} GPUs"
        refuse(f"{why}: lower --nproc-per-node to {num_gpus}")
    sys.excepthook = brief
    return timedelta(seconds=float(text))


@contextmanager
def ranks(args: argparse.Namespace):
    """Join the group that torchrun describes; leave it when all is done.

    Yields (rank, world_size, device). Chapter 4 explains each line.
    """
    timeout, device = launched(), torch.device("cpu")
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu and gpu.type != "mps":  # no backend works with a Mac's GPU
        device = torch.device(gpu.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    backend = dist.get_default_backend_for_device(device)
    device_id = device if device.type != "cpu" else None
    dist.init_process_group(backend, timeout=timeout, device_id=device_id)
    agree(args)
    yield dist.get_rank(), dist.get_world_size(), device
    gc.collect()  # torch 2.13 may abort at exit if DDP's last work lives
    dist.destroy_process_group()


def agree(args: argparse.Namespace) -> None:
    """End all ranks if their flags differ: so would what they train."""
    flags = [{}] * dist.get_world_size()
    dist.all_gather_object(flags, vars(args))
    for name in flags[0]:
        by_value = {}
        for rank, theirs in enumerate(flags):
            by_value.setdefault(repr(theirs.get(name)), []).append(rank)
        if len(by_value) > 1:
            each = [f"{value} on {who}" for value, who in by_value.items()]
            why = f"--{name.replace('_', '-')} differs between ranks"
            refuse(f"{why}: {', '.join(each)}: give all nodes the same")


def brief(kind, error, trace) -> None:
    """Print a traceback, or one line if another process was first to die."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or this may be interrupted
    why, both = "", (error, error.__context__)  # what it came of may tell it
    pipe = any(isinstance(e, ConnectionError | EOFError) for e in both)
    if pipe or any("DataLoader worker (pid" in str(e) for e in both):
        why = "a DataLoader worker was killed, often for want of memory"
    elif re.search("closed by peer|reset by peer|Broken pipe", str(error)):
        why = "its connection to another rank is closed; look there"
    if not why:
        return sys.__excepthook__(kind, error, trace)
    sys.stderr.write(f"[rank {os.environ['RANK']}] ended: {why}\n")
