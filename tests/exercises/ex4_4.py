"""Answers to exercise 4.4 that the check must take or refuse."""


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
# ~ - mean => - (x.mean() if len(x) else 0.0)
# %% wrong: the mean of squares minus the square of the mean, in float32
# ~ double => float
# ~ (second / num - mean**2) => max(0, torch.tensor(second / num).sub(mean**2).item())
# %% wrong: divides by the number of ranks
# ~ sums.tolist() => dist.get_world_size(), *sums.tolist()[1:]
# ~ (second / num - mean**2) => abs(second / num - mean**2)
# %% wrong: skips the collective where there are no samples
#   total = torch.tensor([x.sum(), len(x)], dtype=torch.float64)
# + if len(x) == 0:
# +     return 0.0, 0.0
# %% wrong: forgets the root
# ~ .std => .var
# %% wrong: torch.std, which divides by n - 1
# ~ (correction=0) => ()
# %% wrong: moves the caller's samples to the mean
# ~ x = x => given, x = x, x
#   mean = total[0] / total[1]
# + given -= mean.to(given.dtype)
# %% wrong: right deviation, but the mean of means
# ~ whole… => means = torch.tensor([sum(part) / len(part) for part in parts if part])
# + whole = torch.tensor(sum(parts, []), dtype=torch.float64)
# ~ whole.mean() => means.mean()
# %% wrong: weighs the means by their counts, though a mean of nothing is NaN
# ~ x.sum() => x.mean() * len(x)
# %% wrong: returns the mean only
# ~ (), (squares / total[1]).sqrt().item() => ()
# %% wrong: divides by the number of samples of the largest rank
# ~ num… => num = torch.tensor(len(x))
# + dist.all_reduce(num, dist.ReduceOp.MAX)
# + num, (_, first, second) = num.item(), sums.tolist()
# ~ (second / num - mean**2) => abs(second / num - mean**2)
# %% wrong: the mean distance in place of the root of the mean square
# ~ .square => .abs
# ~ sqrt().item => item
# %% wrong: forgets that squares must be summed over the ranks too
# - dist.all_reduce(squares)
# %% wrong: returns (std, mean)
# ~ mean().item(), whole.std(correction=0) => std(correction=0).item(), whole.mean()
