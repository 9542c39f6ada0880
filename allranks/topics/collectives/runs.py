"""The schedules of ``sums`` on real ranks, by isend and irecv."""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from allranks.topics.collectives import sums

Chunks = dict[int, torch.Tensor]


def run_schedule(
    steps: sums.Steps, parts: Sequence[torch.Tensor], start: Sequence[int]
) -> tuple[Chunks, list[int]]:
    """Run a schedule as one of the ranks; all ranks have to call it.

    Each step posts all of its sends and receives before it waits, so that two ranks
    never wait for each other. A chunk is changed only after it has been sent.

    Args:
        steps: as ``schedule`` returns them.
        parts: this rank's tensor, in W chunks.
        start: the numbers of the chunks that this rank holds at first.
    Returns:
        The chunks held at the end, and the bytes sent to each rank.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    held = {chunk: parts[chunk % size].clone() for chunk in start}
    sent = [0] * size
    for step in steps:
        pending, arrived = [], {}
        for source, target, chunk, op in step:
            if source == rank:
                # The tag keeps two chunks apart that go the same way in one step.
                pending.append(dist.isend(held[chunk], target, tag=chunk))
                sent[target] += held[chunk].nbytes
            elif target == rank:
                arrived[chunk, op] = torch.empty_like(parts[chunk % size])
                pending.append(dist.irecv(arrived[chunk, op], source, tag=chunk))
        for request in pending:
            request.wait()
        # Only now: until its request is done, isend may still read the chunk.
        for source, _, chunk, op in step:
            if source == rank and op == "move":
                del held[chunk]
        for (chunk, op), value in arrived.items():
            held[chunk] = held[chunk] + value if op == "reduce" else value
    return held, sent


def run_torch(
    collective: str, x: torch.Tensor, sizes: Sequence[int]
) -> list[torch.Tensor]:
    """Run torch's own collective, and return the chunks that it promises this rank.

    Args:
        collective: a key of ``FORMULAS``.
        x: this rank's tensor, which the call may change.
        sizes: of its chunks, in numbers.
    """
    rank = dist.get_rank()
    match collective:
        case "all_reduce":
            dist.all_reduce(x)
        case "broadcast":
            dist.broadcast(x, src=0)
        case "reduce_scatter":
            mine = x.new_empty(sizes[rank])
            dist.reduce_scatter(mine, list(x.split(sizes)))
            return [mine]
        case "all_gather":  # gloo wants equal sizes: pad, and cut afterwards
            mine = x.new_zeros(sizes[0])
            mine[: sizes[rank]] = x.split(sizes)[rank]
            parts = [torch.empty_like(mine) for _ in sizes]
            dist.all_gather(parts, mine)
            return [part[:length] for part, length in zip(parts, sizes, strict=True)]
        case "all_to_all":
            mine = x.new_empty(len(sizes) * sizes[rank])
            dist.all_to_all_single(mine, x, [sizes[rank]] * len(sizes), list(sizes))
            return list(mine.split(sizes[rank]))
    return list(x.split(sizes))


def compare(collective: str, algorithm: str, numbers: int, repeats: int = 5) -> dict:
    """Run the schedule and torch's own in turns; all ranks have to call it.

    Args:
        collective, algorithm: keys of ``FORMULAS``.
        numbers: float32 numbers on each rank, at least W.
        repeats: how often each of the two runs.
    Returns:
        ``equal``, whether the results agree bit for bit; ``sent``, the bytes sent to
        each rank; ``ours_s`` and ``torch_s``, medians in seconds.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    sizes = sums.chunk_sizes(numbers, size)
    steps = sums.schedule(collective, algorithm, size)
    start = sums.before(collective, size)[rank]
    dice = torch.Generator().manual_seed(rank)
    x = torch.randint(-999, 1000, (numbers,), generator=dice).float()  # sums are exact
    times = [], []
    for _ in range(repeats):
        dist.barrier()
        times[0].append(time.perf_counter())
        ours, sent = run_schedule(steps, x.split(sizes), start)
        times[0][-1] = time.perf_counter() - times[0][-1]
        dist.barrier()
        times[1].append(time.perf_counter())
        theirs = run_torch(collective, x.clone(), sizes)
        times[1][-1] = time.perf_counter() - times[1][-1]
    promised = sorted(sums.after(collective, size)[rank])
    return {
        "equal": all(map(torch.equal, (ours[i] for i in promised), theirs)),
        "sent": sent,
        "ours_s": sorted(times[0])[repeats // 2],
        "torch_s": sorted(times[1])[repeats // 2],
    }
