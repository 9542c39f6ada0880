"""Mean and standard deviation of data that is spread over ranks.

Chapter: 4
Ranks: 1, 2, 4
Minutes: 15

Images are normalised with the mean and the standard deviation of *all* samples, but
each rank holds only some of them: rank r has `x` of shape `(n_r,)`, where `n_r` differs
and may be 0. Return the pair `(mean, std)` of all ranks' samples, as two Python floats,
the same on every rank. `std` is the square root of the mean squared distance from the
mean.

Samples are float32 or integers. They may be large with a small spread, such as
10,000 ± 1, and then the mean of squares minus the square of the mean loses all digits
in float32.

Hint 1: Which numbers of a rank can be added up over ranks? Is its mean one of them?
What is the mean of no samples?
Hint 2: Add up sums and counts, and divide once. In a second round every rank knows the
mean, so add up the squared distances from it.
Hint 3: `total = torch.tensor([x.sum(), len(x)])`, `dist.all_reduce(total)`, `mean =
total[0] / total[1]`. Then do the same with `((x - mean) ** 2).sum()`, all in float64.
"""

# %% solution
import torch
import torch.distributed as dist


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
from allranks.exercises.oracle import compare

CASES = {  # samples by rank, where they lie, how far apart
    "uneven shares": ([1, 9, 3, 20], 0, 1),
    "equal shares": ([6, 6, 6, 6], 0, 1),
    "ranks that differ": ([4, 7, 5, 6], 0, 0.01),
    "a rank without samples": ([5, 0, 2, 3], 3, 1),
    "rank 0 without samples": ([0, 3, 4, 1], -2, 5),
    "far from 0 with a small spread": ([40, 10, 30, 20], 10_000, 1),
    "integers": ([2, 8, 3, 4], 100, 40),
}


LOST = (
    "The samples are about 10,000 and lie 1 apart. Their squares, about 100,000,000, "
    "are 8 apart at best in float32: the difference of two of them is noise. Take the "
    "distances from the mean first, or sum in float64."
)


def cut_sum(parts):
    """Return the sum of the ranks' sums, each cut to an integer."""
    return sum(int(part.double().sum()) for part in parts)


def shares(name, lengths, centre, spread):
    """Return what each rank gets, the same list on all of them."""
    dice = torch.Generator().manual_seed(len(name))
    lengths = lengths[:world_size] if world_size > 1 else [sum(lengths)]
    parts = [centre + spread * torch.randn(n, generator=dice) for n in lengths]
    if name in ("ranks that differ", "uneven shares"):
        parts = [part + 2 * r for r, part in enumerate(parts)]
    return [part.long() if name == "integers" else part for part in parts]


def check(answer, case):
    for name, values in CASES.items():
        case(name)
        parts = shares(name, *values)
        mine, whole = parts[rank], torch.cat(parts).double()
        untouched, lost = Untouched(x=mine), f" {LOST}" if "far from 0" in name else ""
        got = answer(mine)
        untouched()
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong(f"it returned {got!r}, not a pair (mean, std).")
        for what, value in zip(("mean", "std"), got, strict=True):
            if value != value:
                why = lost or " So is the mean of nothing."
                raise Wrong(f"{what} is NaN on rank {rank}.{why}")
        means = torch.stack([part.double().mean() for part in parts])
        spreads = torch.stack([part.double().var(correction=0) for part in parts])
        sizes = torch.tensor([len(part) for part in parts])
        mean, std = whole.mean().item(), whole.std(correction=0).item()
        mistakes = {
            "This is the mean of the ranks' means, in which a rank with one sample "
            "weighs as much as one with many.": means.mean().item(),
            "This is the sum, not divided by the count.": whole.sum().item(),
            "This is the sum divided by the ranks.": whole.sum().item() / world_size,
            "This is the mean of its own samples.": means[rank].item(),
            "This is divided by the world size too.": mean / world_size,
        }
        mistakes |= {
            "This is the standard deviation: the pair is (mean, std).": std,
            "This is the median.": whole.median().item(),
            "This divides by the largest number of samples; add the numbers up.": (
                whole.sum().item() / sizes.max().item()
            ),
            "The ranks' sums were cut to integers.": cut_sum(parts) / len(whole),
            "A rank without samples counted as a mean of 0.": (
                means.nan_to_num().mean().item()
            ),
        }
        compare(f"on rank {rank}, mean", got[0], mean, mistakes, atol=1e-3 * std)
        inside = ((spreads * sizes).nansum() / len(whole)).sqrt().item()
        mistakes = {
            "This is the variance: take the root.": std**2,
            "This divides by n - 1, the task by n.": whole.std().item(),
            "How far the ranks lie apart is missing.": inside,
            "This is the mean of the ranks' deviations.": spreads.sqrt().mean().item(),
            "This is the deviation of its own samples.": spreads[rank].sqrt().item(),
        }
        own = (parts[rank].double() - mean).square().sum().item()
        distances = (whole - mean).abs()
        mistakes |= {
            "This is the mean distance; square the distances before you take their "
            "mean, and take the root of it.": distances.mean().item(),
            "Only its own samples' squared distances are in it: sum them over the "
            "ranks.": (own / len(whole)) ** 0.5,
            "This is divided by the root of the world size too.": std / world_size**0.5,
        }
        try:
            compare(f"on rank {rank}, std", got[1], std, mistakes, atol=1e-3 * std)
        except Wrong as error:
            raise Wrong(f"{error}{lost}") from None


# %% right: one round, with sums of squares that float64 can hold
def ex4_4(x):
    x = x.double()
    sums = torch.stack([(x**0).sum(), x.sum(), (x**2).sum()])
    dist.all_reduce(sums)
    num, first, second = sums.tolist()
    mean = first / num
    return mean, (second / num - mean**2) ** 0.5


# %% right: collects the samples themselves; costly, and exact
def ex4_4(x):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x.tolist())
    whole = torch.tensor(sum(parts, []), dtype=torch.float64)
    return whole.mean().item(), whole.std(correction=0).item()


# %% wrong: the mean squared distance from the rank's own mean
# = x = x.double()
# = own = x.mean() if len(x) else 0.0
# = sums = torch.tensor([x.sum(), len(x), (x - own).square().sum()]).double()
# = dist.all_reduce(sums)
# = total, num, squares = sums.tolist()
# = return total / num, (squares / num) ** 0.5
# %% wrong: the mean of squares minus the square of the mean, in float32
# = x = x.float()
# = sums = torch.tensor([x.sum(), x.square().sum(), len(x)])
# = dist.all_reduce(sums)
# = mean = sums[0] / sums[2]
# = return mean.item(), (sums[1] / sums[2] - mean**2).clamp(min=0).sqrt().item()
# %% wrong: divides by the number of ranks
# = sums = torch.stack([x.double().sum(), x.double().square().sum()])
# = dist.all_reduce(sums)
# = mean, square = (sums / dist.get_world_size()).tolist()
# = return mean, abs(square - mean**2) ** 0.5
# %% wrong: skips the collective where there are no samples
# - x = x.double()
#   total = torch.tensor([x.sum(), len(x)], dtype=torch.float64)
# + if len(x) == 0:
# +     return 0.0, 0.0
# %% wrong: forgets the root
# = parts = [None] * dist.get_world_size()
# = dist.all_gather_object(parts, x.tolist())
# = whole = torch.tensor(sum(parts, []), dtype=torch.float64)
# = return whole.mean().item(), whole.var(correction=0).item()
# %% wrong: torch.std, which divides by n - 1
# = parts = [None] * dist.get_world_size()
# = dist.all_gather_object(parts, x.tolist())
# = whole = torch.tensor(sum(parts, []), dtype=torch.float64)
# = return whole.mean().item(), whole.std().item()
# %% wrong: moves the caller's samples to the mean
# = total = torch.tensor([x.double().sum(), len(x)], dtype=torch.float64)
# = dist.all_reduce(total)
# = mean = (total[0] / total[1]).item()
# = if x.is_floating_point():
# =     x -= mean
# = squares = (x - (0 if x.is_floating_point() else mean)).double().square().sum()
# = dist.all_reduce(squares)
# = return mean, (squares / total[1]).sqrt().item()
# %% wrong: right deviation, but the mean of means
# = parts = [None] * dist.get_world_size()
# = dist.all_gather_object(parts, x.double())
# = means = torch.stack([part.mean() for part in parts if len(part)])
# = return means.mean().item(), torch.cat(parts).std(correction=0).item()
# %% wrong: weighs the means by their counts, though a mean of nothing is NaN
# = parts = [None] * dist.get_world_size()
# = dist.all_gather_object(parts, x.double())
# = whole = torch.cat(parts)
# = mean = sum(part.mean() * len(part) for part in parts) / len(whole)
# = return mean.item(), (whole - mean).square().mean().sqrt().item()
# %% wrong: returns the mean only
# = total = torch.tensor([x.double().sum(), len(x)], dtype=torch.float64)
# = dist.all_reduce(total)
# = return (total[0] / total[1]).item()
# %% wrong: divides by the number of samples of the largest rank
# = sums = torch.stack([x.double().sum(), x.double().square().sum()])
# = dist.all_reduce(sums)
# = num = torch.tensor(len(x))
# = dist.all_reduce(num, dist.ReduceOp.MAX)
# = mean, square = (sums / num).tolist()
# = return mean, abs(square - mean**2) ** 0.5
# %% wrong: the mean distance in place of the root of the mean square
# = total = torch.tensor([x.double().sum(), len(x)], dtype=torch.float64)
# = dist.all_reduce(total)
# = mean = total[0] / total[1]
# = distance = (x.double() - mean).abs().sum()
# = dist.all_reduce(distance)
# = return mean.item(), (distance / total[1]).item()
# %% wrong: forgets that squares must be summed over the ranks too
# = total = torch.tensor([x.double().sum(), len(x)], dtype=torch.float64)
# = dist.all_reduce(total)
# = mean = total[0] / total[1]
# = squares = (x.double() - mean).square().sum()
# = return mean.item(), (squares / total[1]).sqrt().item()
# %% wrong: returns (std, mean)
# = parts = [None] * dist.get_world_size()
# = dist.all_gather_object(parts, x.tolist())
# = whole = torch.tensor(sum(parts, []), dtype=torch.float64)
# = return whole.std(correction=0).item(), whole.mean().item()
