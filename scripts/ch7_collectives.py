"""Chapter 7 - What a collective costs: all_reduce by hand, counted.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch7_collectives.py
"""

import job  # first, since importing torch takes seconds

import time
from collections import defaultdict, deque
from collections.abc import Callable

import torch
import torch.distributed as dist

LOG = []  # what this rank has sent and received: (what, peer, bytes)


def move(*messages: tuple, wait: bool = True) -> list[dist.Work]:
    """Start each (isend or irecv, tensor, peer) at once, and log them all."""
    LOG.extend((op.__name__, peer, x.nbytes) for op, x, peer in messages)
    works = dist.batch_isend_irecv([dist.P2POp(*m) for m in messages])
    for work in works if wait else ():
        work.wait()
    return works


def around(x: torch.Tensor, ranks: range, steps: range) -> None:
    """Pass W chunks of x around a ring: W - 1 steps add, the next W - 1 copy.

    After W - 1 steps the rank at place p of the ring has the sum of chunk
    p + 1; after 2 (W - 1) steps it has them all.
    """
    size, place = len(ranks), ranks.index(dist.get_rank())
    after, before = ranks[(place + 1) % size], ranks[place - 1]
    chunks = x.tensor_split(size)
    for step in steps:
        out, into = (chunks[(place - step - k) % size] for k in (0, 1))
        received = torch.empty_like(into)
        move((dist.isend, out, after), (dist.irecv, received, before))
        into.copy_(into + received if step < size - 1 else received)


def ring(x: torch.Tensor) -> None:
    """Add up x in a ring of all ranks: 2 (W - 1) steps of n / W bytes."""
    world_size = dist.get_world_size()
    around(x, range(world_size), range(2 * world_size - 2))


def tree(x: torch.Tensor) -> None:
    """Add up x along a binomial tree, then send the sum back down it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    hops = [1 << k for k in range((world_size - 1).bit_length())]
    received = torch.empty_like(x)
    for hop in hops:  # up: every second of those left hands over its sum
        if rank % (2 * hop) == hop:
            move((dist.isend, x, rank - hop))
        elif rank % (2 * hop) == 0 and rank + hop < world_size:
            move((dist.irecv, received, rank + hop))
            x.add_(received)
    for hop in reversed(hops):  # down: the same ways back
        if rank % (2 * hop) == 0 and rank + hop < world_size:
            move((dist.isend, x, rank + hop))
        elif rank % (2 * hop) == hop:
            move((dist.irecv, x, rank - hop))


def halving(x: torch.Tensor) -> None:
    """Halve what a rank adds up, log2 W times; then double what it has."""
    rank, mine, steps = dist.get_rank(), x, []
    for k in range((dist.get_world_size() - 1).bit_length()):
        partner = rank ^ (1 << k)  # rank 2 of 4: 3, then 0
        first, second = mine.tensor_split(2)
        mine, theirs = (second, first) if rank > partner else (first, second)
        received = torch.empty_like(mine)
        move((dist.isend, theirs, partner), (dist.irecv, received, partner))
        mine.add_(received)
        steps.append((partner, mine, theirs))
    for partner, mine, theirs in reversed(steps):  # now both have both halves
        move((dist.isend, mine, partner), (dist.irecv, theirs, partner))


def check(run: Callable, wanted: Callable, n: int, seed: int, device) -> tuple:
    """Run a collective by hand; return its logs by rank, and its seconds.

    Each rank's sum of whole numbers must have the bits of torch's, and of
    any other numbers, all ranks must have the same bits.
    """
    torch.manual_seed(seed + dist.get_rank())
    x = torch.randn(n, device=device)
    whole = x.mul(100).round()  # sums of these are exact, in any order
    run(x), wanted(result := whole.clone())
    dist.broadcast(rank_0s := x.clone(), 0)
    LOG.clear(), dist.barrier()
    start = time.perf_counter()
    run(whole)
    good = torch.equal(whole[:1], result[:1])  # waits for a GPU
    took = time.perf_counter() - start
    good &= torch.equal(whole, result) and torch.equal(x, rank_0s)
    by_rank = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, (LOG, took, good))
    logs, seconds, good = zip(*by_rank, strict=True)
    if not all(good):
        job.refuse(f"rank {good.index(False)} has wrong bits: that is a bug")
    return logs, max(seconds)


def replay(logs: list[list], cost: Callable[[int, int, int], float]) -> float:
    """Return when the last rank is done, if a message takes as long as cost.

    cost(source, target, bytes) says how long both ends are busy with it. If
    it is always 1, the result is the number of steps, one after the other.
    """
    now, wire = [0] * len(logs), [0] * len(logs)  # by rank
    mail, left = defaultdict(deque), [deque(log) for log in logs]
    while any(left):
        for rank, log in enumerate(left):
            while log and (log[0][0] == "isend" or mail[log[0][1], rank]):
                what, peer, num_bytes = log.popleft()
                if what == "isend":
                    start = max(now[rank], wire[rank])
                    wire[rank] = start + cost(rank, peer, num_bytes)
                    mail[rank, peer].append(start)
                else:
                    start = max(now[rank], mail[peer, rank].popleft())
                    now[rank] = start + cost(peer, rank, num_bytes)
    return max(now + wire)


def compare(args, rank: int, world_size: int, device) -> None:
    """Run each algorithm, compare its bits, and count what is on its path."""
    tell, n = str if rank else job.say, 1000 * args.kb  # only rank 0 speaks
    for run in ring, tree, halving:
        if run is halving and world_size & (world_size - 1):
            tell("halving: needs a power of two of ranks")
            continue
        logs, seconds = check(run, dist.all_reduce, n // 4, args.seed, device)
        steps = replay(logs, lambda *_: 1)
        share, ms = replay(logs, lambda *m: m[2] / n), 1e3 * seconds
        tell(f"{run.__name__}: {steps} steps, {share:.4g} n; {ms:.1f} ms")


def parse_args(argv: list[str] | None = None):
    """Read the flags; --kb is the size of a tensor."""
    return job.Flags(__doc__, kb=4000, seed=0).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        compare(args, *place)
