"""Chapter 9 - Seeds: who draws the same random numbers as whom.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch9_seeds.py
"""

import job  # first, since importing torch takes seconds

from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    """Samples to which each read adds noise, drawn in one of several ways."""

    def __init__(self, num: int, how: str, seed: int):
        self.num, self.how, self.seed, self.epoch = num, how, seed, 0
        self.dice = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, i: int) -> float:
        if self.how == "own generator":
            return self.dice.random()
        if self.how == "generator per sample":
            return np.random.default_rng([self.seed, self.epoch, i]).random()
        return np.random.random()


def as_forked(state: tuple, worker: int) -> None:
    """Undo what torch does for NumPy in each worker since version 1.9."""
    np.random.set_state(state)


def read_all(args, how: str, rank: int, world_size: int, workers: int) -> dict:
    """Read the data for some epochs; return what each read drew."""
    seed = args.seed + rank if how == "seed + rank" else args.seed
    torch.manual_seed(seed)
    np.random.seed(seed)
    data, drawn = Noisy(args.samples, how, args.seed), {}
    init = partial(as_forked, np.random.get_state())
    for data.epoch in range(args.epochs):
        mine = range(rank, args.samples, world_size)
        loader = DataLoader(
            data,
            None,
            sampler=mine,
            num_workers=workers,
            worker_init_fn=init if how == "before torch 1.9" else None,
        )
        for i, number in zip(mine, loader, strict=True):
            drawn[data.epoch, i] = float(number)
    return drawn


def main(args, rank: int, world_size: int, device) -> None:
    """Count the different numbers that all workers of all ranks draw."""
    ways = "before torch 1.9", "own generator", "one seed for all ranks"
    for how in *ways, "seed + rank", "generator per sample":
        both = []  # what all ranks draw, with workers and without
        for workers in args.workers, 0:
            mine = read_all(args, how, rank, world_size, workers)
            dist.all_gather_object(every := [{}] * world_size, mine)
            both.append({k: v for drawn in every for k, v in drawn.items()})
        count = f"{len(set(both[0].values()))} of {len(both[0])} different"
        word = "unchanged" if both[0] == both[1] else "changed"
        if rank == 0:
            job.say(f"{how}: {count}, {word} without workers")


def parse_args(argv: list[str] | None = None):
    """Read the flags; --workers are those of each rank."""
    numbers = {"samples": 16, "epochs": 2, "workers": 2, "seed": 0}
    return job.Flags(__doc__, **numbers).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
