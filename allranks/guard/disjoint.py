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


def shared(kept: list[list[int]], size: int) -> tuple[int, tuple[int, int]] | None:
    """How many samples were on two ranks, and the pair with most; None if too few.

    Samples that the data themselves have twice meet on one rank about as often as on
    two. So pairs of equal samples are counted within ranks and between them, and those
    between must be more than chance makes of those within.

    Args:
        kept: digests of each rank's samples.
        size: ranks; as many samples may be on two, as padding.
    """
    counts, rows = [Counter(row) for row in kept], sum(map(len, kept))
    union = set().union(*counts)
    twice = sum(map(len, counts)) - len(union)
    if twice <= max(size, 0.1 * len(union)):
        return None
    pairs = list(itertools.combinations(range(len(kept)), 2))
    common = {
        (i, j): sum(n * counts[j][key] for key, n in counts[i].items())
        for i, j in pairs
    }
    within = sum(n * (n - 1) // 2 for count in counts for n in count.values())
    chances = sum(len(row) * (len(row) - 1) // 2 for row in kept)
    ratio = sum(len(kept[i]) * len(kept[j]) for i, j in pairs) / max(chances, 1)
    between = sum(common.values())
    spread = (between + ratio * ratio * within) ** 0.5
    if within and between - ratio * within < max(2.5 * spread, 0.1 * rows / size):
        return None
    return twice, max(pairs, key=common.get)
