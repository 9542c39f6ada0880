"""Chapter 9 - Shards, lanes and a state: each sample once, whatever happens.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch9_data.py
"""

import argparse
import os
import random
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from itertools import chain, islice, pairwise
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
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SIZE, SHARDS, BUFFER, EVERY = 64, 24, 64, 20  # bytes, files, samples, steps


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


def deal(num: int, lanes: int, key: str) -> list[list[range]]:
    """Deal an epoch's shards out to lanes; ranks play no part in it."""
    ends = [i * num // SHARDS + i % 3 * (num // 300) for i in range(SHARDS)]
    shards = [range(*pair) for pair in pairwise([*ends, num])]  # unequal
    random.Random(key).shuffle(shards)
    return [shards[i::lanes] for i in range(lanes)]


def shuffle(samples, key: str):
    """Yield all samples, each a random one of those in the buffer."""
    samples, rng = iter(samples), random.Random(key)
    buffer = list(islice(samples, BUFFER))
    while buffer:
        yield buffer.pop(rng.randrange(len(buffer)))
        buffer += islice(samples, 1)  # the next one, if there is one


class Stream(IterableDataset):
    """What one rank reads of an epoch; its workers share the rank's lanes."""

    def __init__(self, data, lanes, key: str, batch: int, place, done=0):
        self.data, self.lanes, self.key, self.batch = data, lanes, key, batch
        self.rank, self.world_size = place  # a spawned worker has no group
        longest = max(sum(map(len, shards)) for shards in lanes)
        self.done, self.steps = done, -(-longest // batch)

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        first = self.rank + self.world_size * worker
        mine = range(first, len(self.lanes), self.world_size * workers)
        own = [shuffle(chain(*self.lanes[i]), f"{self.key} {i}") for i in mine]
        for step in range(self.steps):  # as many in every reader
            taken = [i for lane in own for i in islice(lane, self.batch)]
            if step >= self.done:  # what was trained is drawn, but not read
                yield self.data[taken]


def count(windows: torch.Tensor) -> torch.Tensor:
    """Count which byte follows which in (B, T) bytes: (256, 256)."""
    pairs = 256 * windows[:, :-1].long() + windows[:, 1:]
    return torch.bincount(pairs.flatten(), minlength=65536).view(256, 256)


def digest(state: dict) -> str:
    """Return the SHA-256 of what a state says; torch.load checks nothing."""
    said = repr(state | {"pairs": state["pairs"].tolist()})
    return sha256(said.encode()).hexdigest()


def resume(path: str, run: dict) -> dict:
    """Return the state in a checkpoint, if it is whole and of this run."""
    try:
        state = torch.load(path, "cpu", weights_only=True)
        if state.pop("sha256") == digest(state) and state["run"] == run:
            return state
        why = f"damaged, or of {state['run']} instead of {run}"
    except Exception as error:  # whatever torch.load may find wrong
        why = getattr(error, "strerror", None) or "damaged, or no checkpoint"
    refuse(f"--checkpoint {path}: {why}: change flags or file")


def train(args, rank: int, world_size: int, device) -> torch.Tensor:
    """Train on each sample once per epoch; return the model, pairs' counts."""
    text, place = read_text()[0], (rank, world_size)
    if len(text) <= SHARDS * SIZE:
        refuse(f"frankenstein.txt: {len(text)} bytes are too few: take ours")
    data = text.unfold(0, SIZE + 1, SIZE)[:6144]  # (N, 65)
    run = {k: getattr(args, k) for k in ("seed", "lanes", "batch_size")}
    run |= {"buffer": BUFFER, "text": sha256(text.numpy()).hexdigest()[:8]}
    state = {"run": run, "epoch": 1, "step": 0, "pairs": count(data[:0])}
    state = resume(args.checkpoint, run) if args.resume else state
    agree(argparse.Namespace(**run, step=state["step"], sha256=digest(state)))
    pairs, epochs = state["pairs"].to(device), max(args.epochs, state["epoch"])
    for epoch in range(state["epoch"], epochs + 1):
        lanes = deal(len(data), args.lanes, key := f"{args.seed} {epoch}")
        done = state["step"] if epoch == state["epoch"] else 0
        stream = Stream(data, lanes, key, args.batch_size, place, done)
        loader = iter(DataLoader(stream, None, num_workers=args.workers or 0))
        for step in range(done + 1, stream.steps + 1):
            parts = [next(loader) for _ in range(args.workers or 1)]
            new = count(torch.cat(parts).to(device))
            dist.all_reduce(new)  # a sum: ranks may have unequal shares
            pairs += new
            if rank == 0 and (step % EVERY == 0 or step == stream.steps):
                state |= {"epoch": epoch, "step": step, "pairs": pairs.cpu()}
                save(args.checkpoint, state | {"sha256": digest(state)})
                say(f"{epoch=} {step=}: {pairs.sum() // SIZE} windows learned")
            if step == args.stop:
                return pairs
    if not torch.equal(pairs.cpu(), epochs * count(data)):
        refuse("its counts are not those of the text: mend the stream")
    if rank == 0:
        say(f"its counts are {epochs} x those of the whole text")
    return pairs


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags (--batch-size is per lane); refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    numbers = {"--batch-size": 12, "--lanes": 8, "--epochs": 1, "--seed": 0}
    for flag in *numbers, "--workers", "--stop":  # these two may be absent
        parser.add_argument(flag, type=int, default=numbers.get(flag))
    parser.add_argument("--checkpoint", default="ch9_data.pt", help="to write")
    parser.add_argument("--resume", action="store_true", help="go on in it")
    args = in_range(parser.parse_args(argv))
    if os.path.exists(args.checkpoint) and not args.resume:
        refuse(f"{args.checkpoint} exists: --resume it, or name another")
    probe(args.checkpoint)
    return args


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
    train(args := parse_args(), *setup(args))
    dist.destroy_process_group()
