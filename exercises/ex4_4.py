"""Mean and standard deviation of data that is spread over ranks.

Ranks: 1, 2, 4
Minutes: 15

Images are normalized with the mean and the standard deviation of *all* samples, but
each rank holds only some of them.

`ex4_4(x)` is called on every rank with its own samples: on rank r, `x` has the shape
`(n_r,)`, where `n_r` differs and may be 0. Return the pair `(mean, std)` over the
samples of all ranks, as two Python floats, the same on every rank. `std` is the square
root of the mean squared distance from the mean.

Samples are float32 or integers. They may be large and close together, such as 10,000
and 10,001. Then the mean of the squares minus the square of the mean loses all digits
in float32.

Hint 1: Which numbers of a rank can be added up over ranks? Is its mean one of them?
What is the mean of no samples?
Hint 2: Add up sums and counts, and divide once. In a second round every rank knows the
mean, so add up the squared distances from it.
Hint 3: `total = torch.tensor([x.sum(), len(x)])`, `dist.all_reduce(total)`, `mean =
total[0] / total[1]`. Then do the same with `((x - mean) ** 2).sum()`, all in float64.
"""


# %% solution
def ex4_4(x):
    """Return the floats (mean, std) over all ranks' samples x (n_r,)."""
    x = x.double()
    total = torch.tensor([x.sum(), len(x)], dtype=torch.float64)
    dist.all_reduce(total)
    mean = total[0] / total[1]
    squares = (x - mean).square().sum()
    dist.all_reduce(squares)
    return mean.item(), (squares / total[1]).sqrt().item()


# %% check
CASES = {  # samples by rank, where they lie, how far apart
    "uneven shares": ([1, 9, 3, 20], 0, 1),
    "equal shares": ([6, 6, 6, 6], 0, 1),
    "ranks that differ": ([4, 7, 5, 6], 0, 0.01),
    "a rank without samples": ([5, 0, 2, 3], 3, 1),
    "rank 0 without samples": ([0, 3, 4, 1], -2, 5),
    "far from 0 with a small spread": ([40, 10, 30, 20], 10_000, 1),
    "integers": ([2, 8, 3, 4], 100, 40),
}
LOST = """ The samples are about 10,000 and lie 1 apart. Their squares, about
    100,000,000, are 8 apart at best in float32: the difference of two of them is noise.
    Take the distances from the mean first, or sum in float64."""


def shares(name, lengths, center, spread):
    """Return what each rank gets, the same list on all of them."""
    seed = dice(len(name))
    lengths = lengths[:world_size] if world_size > 1 else [sum(lengths)]
    parts = [center + spread * torch.randn(n, generator=seed) for n in lengths]
    if name in ("ranks that differ", "uneven shares"):
        parts = [part + 2 * r for r, part in enumerate(parts)]
    return [part.long() if name == "integers" else part for part in parts]


def check(answer, case):
    for name, values in case.each(CASES):
        parts, lost = shares(name, *values), LOST if "far from" in name else ""
        with Untouched(x=parts[rank]):
            got = answer(parts[rank])
        got = unpack(got, 2, "a pair (mean, std)")
        for what, value in zip(("mean", "std"), got):
            if value != value:
                why = lost or " So is the mean of nothing."
                raise Wrong(f"{what} is NaN on rank {rank}.{why}")
        parts = [part.double() for part in parts]
        whole, sums = torch.cat(parts), torch.stack([part.sum() for part in parts])
        n, means = len(whole), torch.stack([part.mean() for part in parts])
        spreads = torch.stack([part.var(correction=0) for part in parts])
        sizes = torch.tensor([len(part) for part in parts])
        mean, std = whole.mean().item(), whole.std(correction=0).item()
        distances = (parts[rank] - mean).square().sum().item()
        compare(f"on rank {rank}, mean", got[0], mean, {
            "This is the mean of the ranks' means, in which a rank with one sample "
            "weighs as much as one with many.": means.mean().item(),
            "This is the sum, not divided by the count.": whole.sum().item(),
            "This is the sum divided by the ranks.": whole.sum().item() / world_size,
            "This is the mean of its own samples.": means[rank].item(),
            "This is divided by the world size too.": mean / world_size,
            "This is the standard deviation: the pair is (mean, std).": std,
            "This is the median.": whole.median().item(),
            "This divides by the largest number of samples; add the numbers up.":
                whole.sum().item() / sizes.max().item(),
            "The ranks' sums were cut to integers.": sum(map(int, sums)) / n,
            "A rank without samples counted as a mean of 0.":
                means.nan_to_num().mean().item(),
        }, atol=1e-3 * std)  # fmt: skip
        try:
            compare(f"on rank {rank}, std", got[1], std, {
                "This is the variance: take the root.": std**2,
                "This divides by n - 1, the task by n.": whole.std().item(),
                "How far the ranks lie apart is missing.":
                    ((spreads * sizes).nansum() / n).sqrt().item(),
                "This is the mean of the ranks' deviations.":
                    spreads.sqrt().mean().item(),
                "This is the deviation of its own samples.":
                    spreads[rank].sqrt().item(),
                "This is the mean distance; square the distances before you take their "
                "mean, and take the root of it.": (whole - mean).abs().mean().item(),
                "Only its own samples' squared distances are in it: sum them over the "
                "ranks.": (distances / n) ** 0.5,
                "This is divided by the root of the world size too.":
                    std / world_size**0.5,
            }, atol=1e-3 * std)  # fmt: skip
        except Wrong as error:
            raise Wrong(f"{error}{lost}") from None
