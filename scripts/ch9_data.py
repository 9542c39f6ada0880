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


class Lane:
    """A stream of some shards, through a shuffle buffer, that can go on."""

    def __init__(self, shards: list[range], key: str, drawn=0, held=()):
        self.samples, self.key = [i for shard in shards for i in shard], key
        self.drawn, self.held = drawn, list(held)  # given, and in the buffer

    def take(self, num: int) -> list[int]:
        """Return the next num samples, or what is left."""
        taken = []
        while len(taken) < num and self.drawn < len(self.samples):
            read = self.drawn + len(self.held)
            self.held += self.samples[read : self.drawn + BUFFER]
            dice = random.Random(f"{self.key} {self.drawn}")  # has no state
            taken.append(self.held.pop(dice.randrange(len(self.held))))
            self.drawn += 1
        return taken


def deal(num: int, lanes: int, key: str, states: dict) -> list[Lane]:
    """Deal an epoch's shards out to lanes; ranks play no part in it."""
    dice, size = random.Random(0), num // SHARDS  # real files are unequal
    ends = [i * size + dice.randint(0, size // 3) for i in range(1, SHARDS)]
    shards = [range(*p) for p in zip([0, *ends], [*ends, num], strict=True)]
    random.Random(key).shuffle(shards)
    own = [(shards[i::lanes], f"{key} {i}") for i in range(lanes)]
    return [Lane(*args, *states.get(i, ())) for i, args in enumerate(own)]


class Stream(IterableDataset):
    """What one rank reads; its workers share the rank's lanes."""

    def __init__(self, text, lanes: list[Lane], batch: int, place: tuple):
        self.text, self.lanes, self.batch = text, lanes, batch
        self.rank, self.size = place  # a spawned worker has no group
        left = max(len(lane.samples) - lane.drawn for lane in lanes)
        self.steps = -(-left // batch)

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        first, readers = self.rank + self.size * worker, self.size * workers
        mine = dict([*enumerate(self.lanes)][first::readers])
        for _ in range(self.steps):  # as many in every reader
            taken = [s for x in mine.values() for s in x.take(self.batch)]
            starts = SIZE * torch.tensor(taken, dtype=torch.long)[:, None]
            states = {i: [x.drawn, x.held[:]] for i, x in mine.items()}
            yield self.text[starts + torch.arange(SIZE + 1)], states


def count(windows: torch.Tensor) -> torch.Tensor:
    """Count which byte follows which in (B, T) bytes: (256, 256)."""
    pairs = 256 * windows[:, :-1].long() + windows[:, 1:]
    return torch.bincount(pairs.flatten(), minlength=65536).view(256, 256)


def begin(args: argparse.Namespace, run: dict) -> dict:
    """Return the state in the checkpoint to --resume, or a fresh one."""
    if not args.resume:
        return {"run": run, "step": 0, "lanes": {}}
    try:
        state = torch.load(args.checkpoint, "cpu", weights_only=True)
        if state["run"] == run:
            return state
        why = f"it is of {state['run']}, not {run}"
    except Exception as error:  # whatever torch.load may find wrong
        why = getattr(error, "strerror", None) or "not what this script writes"
    refuse(f"--checkpoint {args.checkpoint}: {why}: change flags or file")


def train(args, rank: int, world_size: int, device) -> torch.Tensor:
    """Train for an epoch, or until --stop; return the model, pairs' counts."""
    text, workers = read_text()[0][: 6144 * SIZE + 1], args.workers or 1
    run = {name: getattr(args, name) for name in ("seed", "epoch", "lanes")}
    state = begin(args, run)
    lanes = deal(len(text) // SIZE, args.lanes, str(run), state["lanes"])
    stream = Stream(text, lanes, args.batch_size, (rank, world_size))
    loader = iter(DataLoader(stream, None, num_workers=args.workers or 0))
    pairs = state.get("pairs", torch.zeros(256, 256).long()).to(device)
    last, stop = state["step"] + stream.steps, args.stop or 65536
    for step in range(state["step"] + 1, min(last, stop) + 1):
        batches = [next(loader) for _ in range(workers)]  # one of each
        new = count(torch.cat([windows for windows, _ in batches]).to(device))
        dist.all_reduce(new)  # a sum: ranks may have unequal shares
        pairs += new
        if step % EVERY == 0 or step == last:
            own = {i: s for _, some in batches for i, s in some.items()}
            dist.all_gather_object(all_ := [{}] * world_size, own)
            states = {i: s for own in all_ for i, s in own.items()}
            if rank == 0:
                now = {"step": step, "lanes": states, "pairs": pairs.cpu()}
                save(args.checkpoint, state | now)
                say(f"{step=}: has learned {pairs.sum() // SIZE} windows")
    if rank == 0 and last <= stop:
        same = torch.equal(pairs.cpu(), count(text[None]))
        say(f"its counts are those of the whole text: {same}")
    return pairs


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags (--batch-size is per lane); refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    numbers = {"--batch-size": 12, "--lanes": 8, "--epoch": 1, "--seed": 0}
    numbers |= {"--workers": None, "--stop": None}  # none, and not at all
    for flag, default in numbers.items():
        parser.add_argument(flag, type=int, default=default)
    parser.add_argument("--checkpoint", default="ch9_data.pt", help="to write")
    parser.add_argument("--resume", action="store_true", help="go on in it")
    args = in_range(parser.parse_args(argv))
    if os.path.exists(path := args.checkpoint) and not args.resume:
        refuse(f"{path} exists: go on with --resume, or name another")
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
    most |= {"workers": 64, "numbers": 512, "width": 8192, "columns": 16384}
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
    why, pipe = "", isinstance(error, ConnectionError | EOFError)
    if pipe or re.match(r"DataLoader worker \(pid", str(error)):
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
