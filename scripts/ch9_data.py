"""Chapter 9 - Shards, lanes and a state: each sample once, whatever happens.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch9_data.py
"""

import job  # first, since importing torch takes seconds

import os
import random
from hashlib import sha256
from itertools import chain, islice, pairwise
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import checkpoint
from tasks import read_text

SIZE, SHARDS, BUFFER, EVERY = 64, 24, 64, 20  # bytes, files, samples, steps


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
        for step in range(self.steps):  # the same number in every reader
            taken = [i for lane in own for i in islice(lane, self.batch)]
            if step >= self.done:  # before: draw numbers, read nothing
                yield self.data[taken]  # (B, SIZE + 1); B may be 0


def train(args, rank: int, world_size: int, device) -> torch.Tensor:
    """Train on each sample once per epoch; return the model, pairs' counts."""
    text, place = read_text()[0], (rank, world_size)
    if len(text) <= SHARDS * SIZE:
        why = f"frankenstein.txt: {len(text)} bytes are too few"
        job.refuse(f"{why}: take ours")
    data = text.unfold(0, SIZE + 1, SIZE)[:6144]  # (N, SIZE + 1)
    run = {k: getattr(args, k) for k in ("seed", "lanes", "batch_size")}
    run |= {"buffer": BUFFER, "text": sha256(text.numpy()).hexdigest()[:8]}
    state = {"run": run, "epoch": 1, "step": 0, "pairs": count(data[:0])}
    state = resume(args.checkpoint, run) if args.resume else state
    job.agree(SimpleNamespace(**run, step=state["step"], sha256=digest(state)))
    pairs, epochs = state["pairs"].to(device), max(args.epochs, state["epoch"])
    for epoch in range(state["epoch"], epochs + 1):
        lanes = deal(len(data), args.lanes, key := f"{args.seed} {epoch}")
        done = state["step"] if epoch == state["epoch"] else 0
        stream = Stream(data, lanes, key, args.batch_size, place, done)
        loader = iter(DataLoader(stream, None, num_workers=args.workers or 0))
        for step in range(done + 1, stream.steps + 1):
            parts = [next(loader) for _ in range(args.workers or 1)]
            new = count(torch.cat(parts).to(device))  # (256, 256)
            dist.all_reduce(new)  # a sum: ranks may have unequal shares
            pairs += new
            if rank == 0 and (step % EVERY == 0 or step == stream.steps):
                state |= {"epoch": epoch, "step": step, "pairs": pairs.cpu()}
                whole = state | {"sha256": digest(state)}
                checkpoint.save(args.checkpoint, whole)
                num = pairs.sum() // SIZE
                job.say(f"{epoch=} {step=}: {num} windows learned")
            if step == args.stop:
                return pairs
    if not torch.equal(pairs.cpu(), epochs * count(data)):
        job.refuse("its counts are not those of the text: mend the stream")
    if rank == 0:
        job.say(f"its counts are {epochs} x those of the whole text")
    return pairs


def count(windows: torch.Tensor) -> torch.Tensor:
    """Count which byte follows which in (B, T) bytes: (256, 256)."""
    pairs = 256 * windows[:, :-1].long() + windows[:, 1:]
    return torch.bincount(pairs.flatten(), minlength=65536).view(256, 256)


def digest(state: dict) -> str:
    """Return the SHA-256 of what a state says; torch.load checks nothing."""
    text = repr(state | {"pairs": state["pairs"].tolist()})
    return sha256(text.encode()).hexdigest()


def resume(path: str, run: dict) -> dict:
    """Return the state in a checkpoint, if it is whole and of this run."""
    try:
        state = torch.load(path, "cpu", weights_only=True)
        if state.pop("sha256") == digest(state) and state["run"] == run:
            return state
        why = f"damaged, or of {state['run']} instead of {run}"
    except Exception as error:  # whatever torch.load may find wrong
        why = getattr(error, "strerror", None) or "damaged, or no checkpoint"
    job.refuse(f"--checkpoint {path}: {why}: change flags or file")


def parse_args(argv: list[str] | None = None):
    """Read the flags (--batch-size is per lane); refuse impossible values."""
    numbers = {"batch_size": 12, "lanes": 8, "epochs": 1, "seed": 0}
    parser = job.Flags(__doc__, **numbers)
    parser.add_argument("--workers", type=int, help="of each rank")
    parser.add_argument("--stop", type=int, help="after this step")
    parser.add_argument("--checkpoint", default="ch9_data.pt", help="to write")
    parser.add_argument("--resume", action="store_true", help="go on in it")
    args = parser.parse_args(argv)
    if os.path.exists(args.checkpoint) and not args.resume:
        why = f"{args.checkpoint} exists"
        job.refuse(f"{why}: --resume it, or name another")
    checkpoint.probe(args.checkpoint)
    return args


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        train(args, *place)
