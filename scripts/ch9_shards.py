"""Chapter 9 - Shards on disk: fetched once per node, read as tar or as .bin.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch9_shards.py
"""

import argparse
import atexit
import fcntl
import io
import os
import pickle
import re
import shutil
import signal
import sys
import tarfile
import tempfile
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

import numpy as np
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


def fetch(source: str, path: str) -> bool:
    """Copy source to path once per node; return whether this rank did it."""
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # it ends with the process
        if missing := not os.path.exists(path):
            shutil.copyfile(source, f"{path}.new")
            os.replace(f"{path}.new", path)
        return missing


def write_tar(path: str, texts: list[bytes]) -> None:
    """Write a shard as WebDataset has them: files with a common stem."""
    with tarfile.open(path, "w") as tar:
        for number, text in enumerate(texts):
            for end, data in ("txt", text), ("len", str(len(text)).encode()):
                info = tarfile.TarInfo(f"{number:06d}.{end}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def read_tar(path: str, wanted: int | None = None):
    """Yield a shard's samples front to back; raise if a file is missing."""
    sample, num = {}, 0  # of files: a sample has two here
    with tarfile.open(path, "r|") as tar:  # a stream: it never seeks
        for info in filter(tarfile.TarInfo.isfile, tar):
            stem, _, end = info.name.partition(".")
            if sample and stem != sample["stem"]:
                yield sample
                sample = {}
            sample |= {"stem": stem, end: tar.extractfile(info).read()}
            num += 1
    if wanted not in (None, num):  # before a part of a sample is given out
        raise ValueError(f"{num} files, not {wanted}")
    yield from [sample] if sample else []


class Tokens:
    """The tokens of a .bin file, mapped into memory instead of read."""

    def __init__(self, path: str, dtype: str):
        self.args, self.tokens = (path, dtype), np.memmap(path, dtype, "r")

    def __reduce__(self):  # or pickle copies all tokens, for each worker
        return Tokens, self.args


def told(function, *args) -> str:
    """Return what a call returns or raises, as a text."""
    try:
        return str(function(*args))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def breaks(folder: str, text: torch.Tensor, num: int):
    """Break a shard and a .bin, and yield what happens."""
    path, half = f"{folder}/0.tar", 2048 * (num // 2)  # bytes of half of it
    np.memmap(path)[half + 700] ^= 1  # flips a bit of a text
    found = told(lambda: len([*read_tar(path, 2 * num)]))
    yield f"tar with a flipped bit, with an index: {found}"
    cuts = (2048 * num - 924, "the last header"), (half + 700, "a text")
    for size, where in *cuts, (half + 100, "a header"):
        os.truncate(path, size)
        for wanted, how in (None, "alone"), (2 * num, "with an index"):
            found = told(lambda n: len([*read_tar(path, n)]), wanted)
            yield f"tar cut in {where}, {how}: {found}"
    text.numpy().astype("<u2").tofile(path := f"{folder}/0.bin")
    mapped, other = Tokens(path, "<u2"), np.memmap(path, ">u2", "r")
    yield f"bin: token {mapped.tokens[0]}, or {other[0]} in another order"
    wrapped, found = np.array([70000]).astype("<u2"), told(np.uint16, 70000)
    yield f"bin: token 70000 becomes {wrapped[0]}, or {found}"
    sizes = [len(pickle.dumps(x)) for x in (mapped.tokens, mapped)]
    yield f"bin: a map is pickled to {sizes[0]} bytes, its name to {sizes[1]}"


def numbers(defaults: dict, argv: list[str] | None) -> argparse.Namespace:
    """Read flags that are numbers; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    for flag, default in defaults.items():
        how = {"type": type(default), "default": default}
        parser.add_argument(flag, **how, help=f"default: {default}")
    return in_range(parser.parse_args(argv))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse impossible values."""
    return numbers({"--shards": 5, "--texts": 40}, argv)


def main() -> None:
    """Fetch shards on each node once, and break what can break."""
    args = parse_args()
    rank, world_size, device = setup(args)
    text, num, shards = read_text()[0], args.texts, range(args.shards)
    if num * len(shards) > (most := len(text) // 500):
        refuse(f"{len(shards)} shards x {num} texts: there are {most}")
    name = [f"{tempfile.gettempdir()}/ch9-{os.urandom(8).hex()}"]
    dist.broadcast_object_list(name, 0, device=device)
    near, far = name[0], f"{name[0]}/far"  # a server with files
    try:
        os.makedirs(far, exist_ok=True)
        parts = [bytes(part.tolist()) for part in text.split(500)]
        for i in shards if os.environ["LOCAL_RANK"] == "0" else ():
            write_tar(f"{far}/{i}.tar", parts[num * i : num * (i + 1)])
        dist.barrier()  # the server is ready
        mine = [fetch(f"{far}/{i}.tar", f"{near}/{i}.tar") for i in shards]
        dist.all_reduce(copies := torch.tensor(sum(mine), device=device))
        if rank == 0:
            say(f"{world_size} ranks, {len(shards)} shards: {copies} copies")
            for line in breaks(near, text, num):
                say(line)
        dist.barrier()
    except OSError as error:
        refuse(f"{name[0]}: {error.strerror}: make room, or change TMPDIR")
    finally:
        shutil.rmtree(name[0], ignore_errors=True)
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
    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, stop)  # so that main() deletes its folder
    main()
