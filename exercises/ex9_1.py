"""Who reads which shard?

Ranks: 1
Minutes: 8

Each worker of each rank has to know which shards it reads, so an `IterableDataset`
calls your function at the start of `__iter__`. `shards` is a list of names, the same
for all ranks and workers. `worker_info` is what `torch.utils.data.get_worker_info()`
returned there. Return the list of shards that this worker of this rank reads, so that

- every shard is read by exactly one worker of one rank,
- any two ranks read equally many shards, or one of them reads one more,
- any two workers of a rank read equally many shards, or one of them reads one more.

All ranks have the same number of workers. There may be fewer shards than workers.

Hint 1: Deal the shards out to the ranks first, as one deals cards. What remains to be
done inside a rank is the same task again.
Hint 2: A slice with a step deals cards: `shards[rank::world_size]`. And in a loader
without workers, `get_worker_info()` is None.
Hint 3: `mine[worker_info.id :: worker_info.num_workers]`
"""


# %% solution
def ex9_1(shards, rank, world_size, worker_info):
    """Return the list of shards that this worker of this rank reads."""
    mine = shards[rank::world_size]
    if worker_info is None:
        return mine
    return mine[worker_info.id :: worker_info.num_workers]


# %% check
from collections import Counter
from types import SimpleNamespace

CASES = {  # shards, ranks, workers per rank (None: a loader without workers)
    "one rank without workers": (3, 1, None),
    "two ranks without workers": (5, 2, None),
    "eight shards for two ranks with two workers": (8, 2, 2),
    "six shards for two ranks with two workers": (6, 2, 2),
    "eleven shards for two ranks with three workers": (11, 2, 3),
    "seven shards for three ranks with two workers": (7, 3, 2),
    "five shards for four ranks with two workers": (5, 4, 2),
    "no shards": (0, 2, 2),
}


def check(answer, case):
    for name, (num, size, workers) in case.each(CASES):
        shards = [f"train-{i:03}.tar" for i in range(num)]
        untouched, read = Untouched(shards=shards), {}
        for one in range(size):
            for worker in range(workers or 1):
                info = SimpleNamespace(id=worker, num_workers=workers)
                found = answer(shards, one, size, info if workers else None)
                untouched()
                if not isinstance(found, (list, tuple)):
                    raise Wrong(f"it returned {found!r:.60}, not a list of shards.")
                read[one, worker] = list(found)
        judge(shards, size, workers or 1, read)


def judge(shards, size, workers, read):
    """Is each shard read once, and do all read equally many?"""
    by_rank = [sum((read[r, w] for w in range(workers)), []) for r in range(size)]
    counts = Counter(shard for found in by_rank for shard in found)
    if strange := [shard for shard in counts if shard not in shards]:
        raise Wrong(f"{strange[0]!r} is none of the {len(shards)} shards.")
    if twice := [shard for shard, count in counts.items() if count > 1]:
        who = [f"worker {w} of rank {r}" for (r, w), f in read.items() if twice[0] in f]
        why = ""
        if size > 1 and all(sorted(f) == sorted(by_rank[0]) for f in by_rank):
            why = " All ranks read the same."
        elif workers > 1 and len({tuple(read[0, w]) for w in range(workers)}) == 1:
            why = " All workers of a rank read the same."
        raise Wrong(f"{twice[0]} is read by {' and by '.join(who)}.{why}")
    if lost := [shard for shard in shards if shard not in counts]:
        raise Wrong(f"nobody reads {', '.join(lost)} of {len(shards)} shards.")
    numbers = [[len(read[r, w]) for w in range(workers)] for r in range(size)]
    totals = [sum(row) for row in numbers]
    if max(totals) - min(totals) > 1:
        raise Wrong(f"""every shard is read once, but the ranks read {totals} of
            {len(shards)}, their workers {numbers}: the rank with the fewest is the
            first to end.""")
    for r, row in enumerate(numbers):
        if max(row) - min(row) > 1:
            raise Wrong(f"every shard is read once, but rank {r}'s workers read {row}.")
