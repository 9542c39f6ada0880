"""Chapter 9 - Balance: nobody waits long for the slowest rank.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch9_balance.py
"""

import job  # first, since importing torch takes seconds

import re

import torch
import torch.distributed as dist

from tasks import read_text

WAYS = "as they come", "longest first", "by speed", "whoever is free"


def work_of(text: torch.Tensor) -> list[float]:
    """Return each sentence's work: n for the layers, n n / 256 to attend."""
    sentences = re.findall(rb"[^.!?]+[.!?]", bytes(text.tolist()))
    return [n + n * n / 256 for n in map(len, sentences)]


def split(work: list[float], speeds: list[float], way: str) -> list[list[int]]:
    """Split sentences over ranks; return what each rank gets, by number."""
    ranks, shares = range(len(speeds)), [[] for _ in speeds]
    ends, order = [0.0 for _ in speeds], list(range(len(work)))
    if way == "as they come":
        return [order[rank :: len(speeds)] for rank in ranks]
    if way != "whoever is free":  # the work is known, so begin with the most
        order.sort(key=lambda i: -work[i])
    guess = [1.0 for _ in speeds] if way == "longest first" else speeds
    for i in order:  # to the rank that would end it first
        known = 0 if way == "whoever is free" else work[i]
        rank = min(ranks, key=lambda r: ends[r] + known / guess[r])
        shares[rank].append(i)
        ends[rank] += work[i] / guess[rank]
    return shares


def busy(work: list[list], speeds: list[float], way: str, device) -> float:
    """Return the share of the ranks' time in which they work, over all steps.

    work[t] is what step t has to do. A step ends with its slowest rank.
    """
    rank, spent, done = dist.get_rank(), 0.0, 0.0
    for step in work:
        mine = sum(step[i] for i in split(step, speeds, way)[rank])
        ends = torch.zeros(len(speeds), dtype=torch.double, device=device)
        ends[rank] = mine / speeds[rank]
        dist.all_reduce(ends)  # (W,): when each rank has done its share
        spent += ends.max().item() * sum(speeds)
        done += sum(step)
    return done / spent


def sum_split(work: list[float], shares: list[list[int]], seed: int, device):
    """Add up a random gradient per sentence: on each rank, then over ranks."""
    generator = torch.Generator().manual_seed(seed)  # the same on all ranks
    gradients = torch.randn(len(work), 1000, generator=generator).to(device)
    total = torch.zeros(1000, device=device)
    for i in shares[dist.get_rank()]:
        total += gradients[i]
    dist.all_reduce(total)
    return total


def main(args, rank: int, world_size: int, device) -> None:
    """Compare four splits on equal ranks, and on ranks of unequal speed."""
    num, work = args.sentences, work_of(read_text()[0])
    if num * args.steps > len(work):
        why = f"{args.steps} steps x {num} sentences"
        job.refuse(f"{why}: there are {len(work)}")
    if num < world_size:
        why = f"--sentences {num}: must be {world_size} or more"
        job.refuse(f"{why}, as ranks are")
    steps = [work[num * t : num * (t + 1)] for t in range(args.steps)]
    even = [1.0] * world_size
    slow = [*even[1:], 1 / args.slower]  # the last rank is slower
    for way in WAYS:
        equal, unequal = (busy(steps, s, way, device) for s in (even, slow))
        if rank == 0:
            job.say(f"{way}: busy {equal:.3f}, with a slow rank {unequal:.3f}")
    sums = [
        sum_split(work[:num], split(work[:num], slow, way), args.seed, device)
        for way in WAYS[:2]
    ]
    if rank == 0:
        off, same = (sums[0] - sums[1]).abs().max(), torch.equal(*sums)
        job.say(f"another split, the same gradient: {same}, off by {off:.0e}")


def parse_args(argv: list[str] | None = None):
    """Read the flags; refuse impossible values."""
    numbers = {"sentences": 64, "steps": 20, "slower": 2.0, "seed": 0}
    args = job.Flags(__doc__, **numbers).parse_args(argv)
    if not 0.01 <= (slower := args.slower) <= 100:
        why = f"--slower {slower}: must be 0.01 to 100"
        job.refuse(f"{why}, times as slow")
    return args


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
