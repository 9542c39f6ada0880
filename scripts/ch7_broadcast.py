"""Chapter 7 - A pipelined broadcast: cut it, so that all are busy.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch7_broadcast.py
"""

import job  # first, since importing torch takes seconds

import math
from functools import partial

import torch
import torch.distributed as dist

from ch7_collectives import check, move, replay


def chain(x: torch.Tensor, segments: int) -> None:
    """Broadcast rank 0's x down a chain, in segments one behind another."""
    rank, sending = dist.get_rank(), []
    for part in x.tensor_split(segments):
        if rank > 0:
            move((dist.irecv, part, rank - 1))
        if rank < dist.get_world_size() - 1:  # it leaves while the next comes
            sending += move((dist.isend, part, rank + 1), wait=False)
    for work in sending:
        work.wait()


def compare(args, rank: int, world_size: int, device) -> None:
    """Broadcast with ever more segments, and find the best number of them."""
    n, start = 1000 * args.kb, 1000 * args.start_kb
    for segments in 1, 4, 16, 64, 256:
        run = partial(chain, segments=segments)
        wanted = partial(dist.broadcast, src=0)
        logs, _ = check(run, wanted, n // 4, args.seed, device)
        if rank == 0:
            steps = replay(logs, lambda *_: 1)
            share = replay(logs, lambda *message: message[2] / n)
            whole = replay(logs, lambda *message: (start + message[2]) / n)
            counted = f"{steps} steps, {share:.3f} n, {whole:.3f} n / B"
            job.say(f"{segments} segments: {counted}")
    if rank == 0 and world_size > 2:
        best = math.sqrt((world_size - 2) * n / start)
        job.say(f"best by the formula: {best:.1f} segments")


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    parser = job.Flags(__doc__, seed=0)
    parser.add_argument("--kb", type=int, default=4096, help="of a tensor")
    parser.add_argument("--start-kb", type=int, default=64, help="alpha B")
    return parser.parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        compare(args, *place)
