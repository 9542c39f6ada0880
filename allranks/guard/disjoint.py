"""Invariant: no sample on two ranks; told from samples that the data have twice."""

import itertools
from collections import Counter

STREAM = (
    "Deal one order out by rank and worker: the same seed on all ranks for what is "
    "shuffled, then islice(order, rank * num_workers + worker, None, "
    "world_size * num_workers)."
)
DRAWN = "Seed the sampler's generator with seed + rank."
MAP = (
    "Use a DistributedSampler, on one order of the samples (sort what listdir or a "
    "set gives)."
)


def cure(drawn: bool, streams: bool) -> str:
    """Say how samples that are drawn, streamed or numbered get apart."""
    return DRAWN if drawn else STREAM if streams else MAP


def shared(kept: list[list[int]], size: int) -> tuple[int, tuple[int, int]] | None:
    """How many samples were on two ranks, and the pair with most; None if too few.

    Samples that the data themselves have twice meet on one rank about as often as on
    two. So pairs of equal samples are counted within ranks and between them, and those
    between must be more than chance makes of those within.

    Args:
        kept: digests of each rank's samples.
        size: ranks; as many samples may be on two, as padding.
    """
    counts = [Counter(row) for row in kept]
    union = set().union(*counts)
    twice = sum(map(len, counts)) - len(union)
    if twice <= max(size, 0.1 * len(union)):
        return None
    inside = any(len(count) < len(row) for count, row in zip(counts, kept, strict=True))
    follow = [list(itertools.pairwise(row)) for row in kept]  # shards overlap in runs
    if inside and not (_more(kept) or _more(follow)):
        return None
    pairs = itertools.combinations(range(len(kept)), 2)
    common = {(i, j): len(counts[i].keys() & counts[j].keys()) for i, j in pairs}
    return twice, max(common, key=common.get)


def _more(kept: list[list]) -> bool:
    """Whether equal ones between ranks are more than those within ranks explain."""
    counts, rows = [Counter(row) for row in kept], sum(map(len, kept))
    within = sum(n * (n - 1) // 2 for count in counts for n in count.values())
    every = sum(n * (n - 1) // 2 for n in sum(counts, Counter()).values())
    between = every - within
    chances = sum(len(row) * (len(row) - 1) // 2 for row in kept)
    ratio = (rows * (rows - 1) // 2 - chances) / max(chances, 1)
    spread = (between + ratio * ratio * within) ** 0.5
    return between - ratio * within > max(2.5 * spread, 0.1 * rows / len(kept))


def whole(rows: list[int], workers: int) -> int:
    """How often each sample came, if each worker read a whole stream; else 0."""
    counts = Counter(rows).values()
    if workers < 2 or len(counts) < 4:
        return 0
    each = sum(count % workers == 0 for count in counts)
    return workers * (each >= 0.9 * len(counts))
