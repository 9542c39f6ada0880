"""Chapter 9 - Pull the work: whoever is free takes the next piece.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch9_pull.py
"""

import job  # first, since importing torch takes seconds

import os
import time

import torch.distributed as dist


def pull(num: int, store: dist.Store, step: int, seconds: float) -> list:
    """Take one number after another off a counter until num are taken."""
    mine = []
    while (i := store.add(f"taken in {step}", 1) - 1) < num:
        mine.append(i)
        time.sleep(seconds)  # the work
    return mine


def open_store(rank: int, device) -> dist.Store:
    """Open a store on rank 0, at a free port, and connect all ranks to it."""
    host, port = os.environ["MASTER_ADDR"], [None]
    if rank == 0:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        port = [store.port]
    dist.broadcast_object_list(port, 0, device=device)
    return store if rank == 0 else dist.TCPStore(host, port[0])


def main(args, rank: int, world_size: int, device) -> None:
    """Let ranks pull sentences; the last rank is slower than the others."""
    slower = args.slower if rank == world_size - 1 else 1.0
    store = open_store(rank, device)
    mine = pull(args.sentences, store, 0, 0.002 * slower)
    dist.all_gather_object(taken := [[]] * world_size, mine)
    if rank == 0:
        numbers = sorted(i for some in taken for i in some)
        once = numbers == list(range(args.sentences))
        share = len(taken[-1]) / args.sentences
        job.say(f"pulled, each once: {once}; the slow rank took {share:.0%}")


def parse_args(argv: list[str] | None = None):
    """Read the flags; refuse impossible values."""
    args = job.Flags(__doc__, sentences=64, slower=2.0).parse_args(argv)
    if not 0.01 <= args.slower <= 100:  # it really works so long
        why = f"--slower {args.slower}: must be 0.01 to 100"
        job.refuse(f"{why}, times as slow")
    return args


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
