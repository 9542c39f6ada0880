"""Gather tensors of different lengths.

Chapter: 4
Ranks: 1, 4
Minutes: 15

Rank r holds `x` of shape `(n_r, D)`. `n_r` differs from rank to rank and may be 0; `D`
and the dtype are the same on all. Return, on every rank, the rows of all ranks in rank
order: a tensor of shape `(n_0 + n_1 + …, D)`. Leave `x` as it is.

`dist.all_gather` wants equal shapes. If they differ, gloo may end the process.

Hint 1: What must each rank know of the others before it can make room for their rows?
Hint 2: Gather the lengths first. Then pad every rank's rows to the longest, and gather.
Cut the padding off by length, because a row of zeros may be data.
Hint 3: `padded = x.new_zeros(longest, x.shape[1])`, `padded[: len(x)] = x`, and after
the all_gather `torch.cat([part[:n] for part, n in zip(parts, lengths)])`.
"""

# %% solution
import torch
import torch.distributed as dist


def ex4_3(x):
    """Return the rows of all ranks' x (n_r, D) in rank order, on every rank."""
    lengths = [torch.tensor(0) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor(len(x)))
    padded = x.new_zeros(max(lengths), x.shape[1])
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded)
    return torch.cat([part[:n] for part, n in zip(parts, lengths, strict=True)])


# %% check
from allranks.exercises.oracle import compare

CASES = {
    "equal lengths": ([2, 2, 2, 2], torch.float32),
    "a row of zeros is data": ([3, 1, 2, 5], torch.float32),
    "the longest first": ([5, 3, 2, 1], torch.float64),
    "integers and two ranks without a row": ([0, 3, 0, 1], torch.int64),
    "only the last rank has rows": ([0, 0, 0, 2], torch.float32),
    "nobody has a row": ([0, 0, 0, 0], torch.float32),
}
all_gather = dist.all_gather


def guarded(parts, x, *args, **kwargs):
    sizes = [torch.tensor(0) for _ in range(world_size)]
    all_gather(sizes, torch.tensor(x.numel()))
    if len({*map(int, sizes)}) > 1:
        listed = ", ".join(str(int(size)) for size in sizes)
        raise Wrong(
            f"the ranks give all_gather {listed} numbers; it wants equal sizes."
        )
    return all_gather(parts, x, *args, **kwargs)


def check(answer, case):
    patch(dist, "all_gather", guarded)
    for name, (lengths, dtype) in CASES.items():
        case(name)
        lengths = lengths[:world_size]
        every = [torch.zeros(n, 3, dtype=dtype) for n in lengths]
        for r, rows in enumerate(every):
            rows[:2, 0] = r + 1  # from the third on, rows are zero
            rows[:2, 1] = torch.arange(len(rows))[:2]
        mine, longest = every[rank], max(lengths)
        padded = [torch.cat([x, x.new_zeros(longest - len(x), 3)]) for x in every]
        rows = torch.cat(every)
        mistakes = {
            "The padding is still in it.": torch.cat(padded),
            "Rows of zeros are gone, and they were data.": rows[rows.any(dim=1)],
            "These are its own rows only.": mine,
            "Its own rows come first; rank 0's should.": torch.cat(
                [mine, *every[:rank], *every[rank + 1 :]]
            ),
            f"All parts are cut to {len(mine)} rows, its own number.": torch.cat(
                [part[: len(mine)] for part in padded]
            ),
            "All parts are cut to the shortest.": torch.cat(
                [part[: min(lengths)] for part in every]
            ),
        }
        untouched = Untouched(x=mine)
        compare(f"rank {rank}'s result", answer(mine), rows, mistakes)
        untouched()


# %% right: each rank broadcasts in turn, so that nothing is padded
def ex4_3(x):
    parts = []
    for src in range(dist.get_world_size()):
        length = torch.tensor(len(x))
        dist.broadcast(length, src)
        part = x if src == dist.get_rank() else x.new_empty(int(length), x.shape[1])
        dist.broadcast(part, src)
        parts.append(part)
    return torch.cat(parts)


# %% right: objects bring their size along (they are pickled, which takes longer)
def ex4_3(x):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x)
    return torch.cat(parts)


# %% wrong: assumes that the others have as many rows
# = parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
# = dist.all_gather(parts, x)
# = return torch.cat(parts)
# %% wrong: leaves the padding in
# = longest = torch.tensor(len(x))
# = dist.all_reduce(longest, dist.ReduceOp.MAX)
# = padded = torch.cat([x, x.new_zeros(int(longest) - len(x), x.shape[1])])
# = parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
# = dist.all_gather(parts, padded)
# = return torch.cat(parts)
# %% wrong: takes every row of zeros for padding
# = longest = torch.tensor(len(x))
# = dist.all_reduce(longest, dist.ReduceOp.MAX)
# = padded = torch.cat([x, x.new_zeros(int(longest) - len(x), x.shape[1])])
# = parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
# = dist.all_gather(parts, padded)
# = rows = torch.cat(parts)
# = return rows[rows.any(dim=1)]
# %% wrong: cuts every part to its own length
# = longest = torch.tensor(len(x))
# = dist.all_reduce(longest, dist.ReduceOp.MAX)
# = padded = torch.cat([x, x.new_zeros(int(longest) - len(x), x.shape[1])])
# = parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
# = dist.all_gather(parts, padded)
# = return torch.cat([part[: len(x)] for part in parts])
# %% wrong: makes room for float32 only
# = parts = [None] * dist.get_world_size()
# = dist.all_gather_object(parts, x.float())
# = return torch.cat(parts)
# %% wrong: puts its own rows first
# = parts = [None] * dist.get_world_size()
# = dist.all_gather_object(parts, x)
# = parts.pop(dist.get_rank())
# = return torch.cat([x, *parts])
# %% wrong: cuts all to the shortest, and drops the tails
# = shortest = torch.tensor(len(x))
# = dist.all_reduce(shortest, dist.ReduceOp.MIN)
# = x = x[: int(shortest)].contiguous()
# = parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
# = dist.all_gather(parts, x)
# = return torch.cat(parts)
# %% wrong: lengthens the caller's own tensor
# = lengths = [None] * dist.get_world_size()
# = dist.all_gather_object(lengths, len(x))
# = x.resize_(max(lengths), x.shape[1])
# = parts = [torch.empty_like(x) for _ in lengths]
# = dist.all_gather(parts, x)
# = return torch.cat([part[:n] for part, n in zip(parts, lengths, strict=True)])
