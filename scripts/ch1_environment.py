"""Chapter 1 - Environment: what decides whether ranks can train here.

Run it (no GPU needed):
    python scripts/ch1_environment.py
    torchrun --standalone --nproc-per-node 2 scripts/ch1_environment.py
"""

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
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


def describe_torch() -> str:
    """Say what this PyTorch was built for: it runs on nothing else."""
    cuda, hip = torch.version.cuda, torch.version.hip
    built = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "the CPU"
    names = "gloo, nccl" if dist.is_nccl_available() else "gloo"
    return f"PyTorch {torch.__version__} is built for {built}, with {names}."


def ask_driver() -> list[str]:
    """Ask nvidia-smi for the driver's version; it prints one line per GPU."""
    query = "--query-gpu=driver_version", "--format=csv,noheader"
    how = {"capture_output": True, "text": True, "timeout": 10}
    try:
        done = subprocess.run(["nvidia-smi", *query], **how)
    except (OSError, subprocess.TimeoutExpired):
        return []  # there is no driver, or it hangs
    return [] if done.returncode else done.stdout.split()


def describe_devices() -> str:
    """Say what ranks compute on: a GPU counts only if PyTorch can use it."""
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu is not None and gpu.type != "mps":
        found = f"{torch.accelerator.device_count()} x {gpu.type}"
        backend = dist.get_default_backend_for_device(gpu)
        return f"Ranks compute on {found}, joined by {backend}."
    why, cuda = "there is no GPU for them", torch.version.cuda
    if versions := ask_driver():
        none = f"CUDA {cuda} does not start"
        why = f"{len(versions)} GPUs have driver {versions[0]}, but "
        why += none if cuda else "this PyTorch is built without CUDA"
    backend = dist.get_default_backend_for_device("cpu")
    return f"Ranks compute on the CPU, joined by {backend}: {why}."


def describe_cores(num_ranks: int) -> str:
    """Say how many cores there are for the ranks of this machine."""
    usable = getattr(os, "sched_getaffinity", None)  # macOS has none
    cores = len(usable(0)) if usable else os.cpu_count()
    share = f"{cores} of {os.cpu_count()} are ours, {cores / num_ranks:g}"
    num = torch.get_num_threads()
    return f"Cores: {share} per rank; threads in each rank: {num}."


def describe_memory() -> str:
    """Say how much of /dev/shm is free: DataLoader's workers fill it."""
    if not os.path.isdir("/dev/shm"):
        return "There is no /dev/shm, since this is not Linux."
    disk = shutil.disk_usage("/dev/shm")
    size = f"{disk.free / 2**30:.1f} of {disk.total / 2**30:.1f} GiB free"
    cure = "little: start the container with --ipc=host"
    enough = "enough" if disk.free >= 2**30 else cure
    return f"/dev/shm has {size}, which is {enough}."


def describe_name() -> str:
    """Say where this machine's own name leads, since gloo listens there."""
    name = socket.gethostname()
    try:
        address, leads = socket.gethostbyname(name), "leads to"
    except OSError:
        address, leads = "127.0.0.1", "has no address, so gloo takes"
    inside = address.startswith("127.")
    who = "only ranks on this machine" if inside else "ranks of many machines"
    return f"The name {name} {leads} {address}, where {who} may meet."


def describe_launcher() -> str:
    """Say who makes this process a rank: a launcher, a mistake, or nobody."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        num = os.environ["LOCAL_WORLD_SIZE"]
        return f"Processes that torchrun started on this machine: {num}."
    names = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
    if stale := " ".join(name for name in names if name in os.environ):
        return f"No launcher is here, but its variables are: unset {stale}."
    return "No launcher started this process, so it is alone."


def add_up(rank: int, world_size: int, device: torch.device) -> str:
    """Add up what all ranks bring: 1 + 2 + ... + W, which has a formula."""
    x = torch.full((2**22,), rank + 1.0, device=device)  # 16 MiB
    dist.all_reduce(x)
    expected = world_size * (world_size + 1) / 2
    if not bool((x == expected).all()):
        found = f"{x.min():g} to {x.max():g}"
        refuse(f"all_reduce gave {found}, not {expected:g}: do not train here")
    return f"I brought {rank + 1}, and all_reduce made it {expected:g}: right."


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line, which has no flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Print the facts once on each machine, then let all ranks add."""
    args, num_ranks = parse_args(argv), 1
    if launched := "LOCAL_RANK" in os.environ:
        time_limit()  # refuse an incomplete set of a launcher's variables
        num_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    if os.environ.get("LOCAL_RANK", "0") == "0":
        put(describe_torch())
        put(describe_devices())
        put(describe_cores(num_ranks))
        put(describe_memory())
        put(describe_name())
        put(describe_launcher())
    if launched:
        rank, world_size, device = setup(args)
        say(add_up(rank, world_size, device))
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
