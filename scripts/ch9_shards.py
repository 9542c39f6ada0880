"""Chapter 9 - Shards on disk: fetched once per node, read as tar or as .bin.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch9_shards.py
"""

import job  # first, since importing torch takes seconds

import fcntl
import io
import os
import pickle
import shutil
import signal
import tarfile
import tempfile
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist

from tasks import read_text


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


def outcome(function, *args) -> str:
    """Return what a call returns or raises, as a text."""
    try:
        return str(function(*args))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def breaks(folder: str, text: torch.Tensor, num: int):
    """Break a shard and a .bin, and yield what happens."""
    path, half = f"{folder}/0.tar", 2048 * (num // 2)  # bytes of half of it
    np.memmap(path)[half + 700] ^= 1  # flips a bit of a text
    samples = outcome(lambda: len([*read_tar(path, 2 * num)]))
    yield f"tar with a flipped bit, with an index: {samples}"
    cuts = (2048 * num - 924, "the last header"), (half + 700, "a file")
    for size, where in *cuts, (half + 100, "a header"):
        os.truncate(path, size)
        for wanted, how in (None, "alone"), (2 * num, "with an index"):
            samples = outcome(lambda n: len([*read_tar(path, n)]), wanted)
            yield f"tar cut in {where}, {how}: {samples}"
    text.numpy().astype("<u2").tofile(path := f"{folder}/0.bin")
    mapped, other = Tokens(path, "<u2"), np.memmap(path, ">u2", "r")
    yield f"bin: token {mapped.tokens[0]}, or {other[0]} in another order"
    wrapped, cast = np.array([70000]).astype("<u2"), outcome(np.uint16, 70000)
    yield f"bin: token 70000 becomes {wrapped[0]}, or {cast}"
    sizes = [len(pickle.dumps(x)) for x in (mapped.tokens, mapped)]
    yield f"bin: a map is pickled to {sizes[0]} bytes, its name to {sizes[1]}"


@contextmanager
def open_folder(device):
    """Yield a new folder, the same for all ranks; delete it at any end."""
    name = [f"{tempfile.gettempdir()}/ch9-{os.urandom(8).hex()}"]
    dist.broadcast_object_list(name, 0, device=device)

    def end(*_):  # on Ctrl-C, or on a scheduler's SIGTERM
        shutil.rmtree(name[0], ignore_errors=True)
        os._exit(130)

    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, end)
    try:
        yield name[0]
    except OSError as error:
        why = f"{name[0]}: {error.strerror}"
        job.refuse(f"{why}: make room, or change TMPDIR")
    finally:
        shutil.rmtree(name[0], ignore_errors=True)


def main(args, rank: int, world_size: int, device) -> None:
    """Fetch shards on each node once, and break what can break."""
    text, num, shards = read_text()[0], args.texts, range(args.shards)
    if num * len(shards) > (most := len(text) // 500):
        job.refuse(f"{len(shards)} shards x {num} texts: there are {most}")
    with open_folder(device) as near:
        os.makedirs(far := f"{near}/far", exist_ok=True)  # a server's files
        parts = [bytes(part.tolist()) for part in text.split(500)]
        for i in shards if os.environ["LOCAL_RANK"] == "0" else ():
            write_tar(f"{far}/{i}.tar", parts[num * i : num * (i + 1)])
        dist.barrier()  # the server is ready
        mine = [fetch(f"{far}/{i}.tar", f"{near}/{i}.tar") for i in shards]
        dist.all_reduce(copies := torch.tensor(sum(mine), device=device))
        if rank == 0:
            job.say(f"{world_size} ranks, {len(mine)} shards: {copies} copies")
            for line in breaks(near, text, num):
                job.say(line)
        dist.barrier()


def parse_args(argv: list[str] | None = None):
    """Read the flags; --texts are those of each shard."""
    return job.Flags(__doc__, shards=5, texts=40).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
