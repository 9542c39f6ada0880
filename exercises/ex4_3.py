"""Gather tensors of different lengths.

Ranks: 1, 4
Minutes: 15

`dist.all_gather` wants tensors of equal shapes. If they differ, gloo may end the
process. What if each rank has a different number of rows?

`ex4_3(x)` is called on every rank. On rank r, `x` has the shape `(n_r, D)`. `n_r`
differs from rank to rank and may be 0; `D` and the dtype are the same on all. Return,
on every rank, the rows of all ranks in rank order: a tensor of shape `(n_0 + n_1 + …,
D)`. Leave `x` as it is.

Hint 1: What must each rank know of the others before it can make room for their rows?
Hint 2: Gather the lengths first. Then pad every rank's rows to the longest, and gather.
Cut the padding off by length, because a row of zeros may be data.
Hint 3: `padded = x.new_zeros(longest, x.shape[1])`, `padded[: len(x)] = x`, and after
the all_gather `torch.cat([part[:n] for part, n in zip(parts, lengths)])`.
"""


# %% solution
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
CASES = {
    "equal lengths": ([2, 2, 2, 2], torch.float32),
    "a row of zeros is data": ([3, 1, 2, 5], torch.float32),
    "the longest first": ([5, 3, 2, 1], torch.float64),
    "integers and two ranks without a row": ([0, 3, 0, 1], torch.int64),
    "only the last rank has rows": ([0, 0, 0, 2], torch.float32),
    "nobody has a row": ([0, 0, 0, 0], torch.float32),
}


def equal(parts, x, *args, **kwargs):
    if len(set(sizes := everyone(x.numel()))) > 1:
        raise Wrong(f"""the ranks give all_gather {", ".join(map(str, sizes))} numbers;
            it wants equal sizes.""")


def check(answer, case):
    spy(dist, "all_gather", equal)
    for name, (lengths, dtype) in case.each(CASES):
        lengths = lengths[:world_size]
        every = [torch.zeros(n, 3, dtype=dtype) for n in lengths]
        for r, rows in enumerate(every):
            rows[:2, 0] = r + 1  # from the third on, rows are zero
            rows[:2, 1] = torch.arange(len(rows))[:2]
        mine, rows = every[rank], torch.cat(every)
        filled = [F.pad(x, (0, 0, 0, max(lengths) - len(x))) for x in every]
        own_first = [mine, *every[:rank], *every[rank + 1 :]]
        cut = f"All parts are cut to {len(mine)} rows, its own number."
        untouched = Untouched(x=mine)
        compare(f"rank {rank}'s result", answer(mine), rows, {
            "The padding is still in it.": torch.cat(filled),
            "Rows of zeros are gone, and they were data.": rows[rows.any(dim=1)],
            "These are its own rows only.": mine,
            "Its own rows come first; rank 0's should.": torch.cat(own_first),
            cut: torch.cat([part[: len(mine)] for part in filled]),
            "All parts are cut to the shortest.":
                torch.cat([part[: min(lengths)] for part in every]),
        })  # fmt: skip
        untouched()
