"""Clip by the norm of a gradient that is spread over ranks.

Chapter: 10
Ranks: 1, 2, 4
Minutes: 20

`sharded` and `replicated` are lists of gradient tensors. Of the first, each rank has
parts of its own, which may be empty or none at all. The second are equal on all ranks,
as after an all_reduce, and belong to the gradient *once*. Scale all of them in place so
that the norm of the whole gradient is at most `max_norm`; a shorter gradient stays as
it is. Return the norm before clipping, as a float, the same on all ranks.

Some gradients are float16, whose largest number is 65504, and some bfloat16, which has
eight significant bits. The norm must be right all the same, to five digits. It is
neither 0 nor infinite.

Hint 1: Norms of parts cannot be added. What can? And how many times does the sum over W
ranks count what all of them hold?
Hint 2: Add the squares of the shards over the ranks, then the squares of what is
replicated, once. Square in float32 or more: 300² overflows in float16.
Hint 3: `dist.all_reduce` of one number, which a rank without shards brings too; then
`gradient.mul_(min(1, max_norm / norm))`.
"""

# %% solution
import torch
import torch.distributed as dist


def ex10_3(sharded, replicated, max_norm):
    """Clip the whole gradient to max_norm in place, and return its norm before."""
    total = torch.zeros(1, dtype=torch.double)
    for gradient in sharded:
        total += gradient.double().square().sum()
    dist.all_reduce(total)
    for gradient in replicated:
        total += gradient.double().square().sum()
    norm = total.sqrt().item()
    for gradient in (*sharded, *replicated):
        gradient.mul_(min(1.0, max_norm / norm))
    return norm


# %% check
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
CASES = {  # sharded: sizes by rank, replicated sizes, dtype, magnitude, max_norm
    "shards of equal size": ([[6]] * 4, [], F32, 2.0, 1.0),
    "shards and replicated": ([[5, 3]] * 4, [4, 7], F32, 2.0, 1.0),
    "replicated only": ([[]] * 4, [8], F32, 2.0, 1.0),
    "a short gradient stays": ([[5, 3]] * 4, [4], F32, 0.01, 1.0),
    "a threshold of 10": ([[64], [32], [8], [8]], [4], F32, 5.0, 10.0),
    "one rank has an empty part": ([[5], [0], [2], [5]], [3], F32, 2.0, 1.0),
    "the last rank has no shards": ([[5], [], [4], []], [3], F32, 2.0, 1.0),
    "float16, whose squares overflow": ([[7]] * 4, [3], F16, 3e2, 1.0),
    "float16, whose squares vanish": ([[7]] * 4, [3], F16, 1e-4, 1e-5),
    "bfloat16, many numbers": ([[3000]] * 4, [500], BF16, 1.0, 1.0),
}


def made(sizes, seed, dtype, magnitude):
    """Return gradients that any rank can make."""
    dice = torch.Generator().manual_seed(seed)
    return [
        ((torch.rand(n, generator=dice) + 0.5) * magnitude).to(dtype) for n in sizes
    ]


def square(tensors):
    """Return the sum of the squares of all numbers, in float64."""
    return sum((t.double().square().sum().item() for t in tensors), 0.0)


def check(answer, case):
    for name, (sizes, same, dtype, magnitude, most) in CASES.items():
        case(name)
        parts = [made(sizes[r], 10 + r, dtype, magnitude) for r in range(world_size)]
        shared = made(same, 5, dtype, magnitude)
        squares = [square(part) for part in parts]
        norm = (sum(squares) + square(shared)) ** 0.5
        # norms that likely mistakes lead to
        twice = (sum(squares) + world_size * square(shared)) ** 0.5
        own = (squares[rank] + square(shared)) ** 0.5
        added = sum(s**0.5 for s in squares) + square(shared) ** 0.5
        mine, ours = [t.clone() for t in parts[rank]], [t.clone() for t in shared]
        got = answer(mine, ours, most)
        if not isinstance(got, float):
            raise Wrong(f"it returned {type(got).__name__}, not a float.")
        compare(f"the norm that rank {rank} returns", got, norm, {
            "It counts what is replicated once per rank.": twice,
            "It leaves out the other ranks' shards.": own,
            "It adds norms, not their squares.": added,
            "It leaves out what is replicated.": sum(squares) ** 0.5,
            "It is the norm after clipping.": min(norm, most),
        }, rtol=1e-5)  # fmt: skip
        factor = min(1.0, most / norm)
        close = {"rtol": 1e-4 if dtype == F32 else 0.02, "atol": 1e-7}
        for kind, given, left in (
            ("shard", parts[rank], mine), ("replicated gradient", shared, ours),
        ):  # fmt: skip
            for i, (before, after) in enumerate(zip(given, left)):
                want = (before.double() * factor).to(dtype)
                compare(f"rank {rank}'s {kind} {i}", after, want, {
                    "It is not clipped.": before,
                    "A short gradient must not grow.": before * (most / norm),
                }, **close)  # fmt: skip


# %% right: each rank brings its share of what all hold
def ex10_3(sharded, replicated, max_norm):
    share = 1 / dist.get_world_size()
    found = [t.float().norm() ** 2 for t in sharded]
    found += [share * t.float().norm() ** 2 for t in replicated]
    total = torch.stack([torch.zeros(()), *found]).double().sum()
    dist.all_reduce(total)
    norm = float(total) ** 0.5
    if norm > max_norm:
        torch._foreach_mul_([*sharded, *replicated], max_norm / norm)
    return norm


# %% wrong: the norm of what this rank holds
# = gradients = [t.double() for t in (*sharded, *replicated)]
# = norm = sum(t.square().sum().item() for t in gradients) ** 0.5
# = for gradient in (*sharded, *replicated):
# =     gradient.mul_(min(1.0, max_norm / norm))
# = return norm
# %% wrong: what is replicated counts once per rank
# - for gradient in sharded:
# + for gradient in (*sharded, *replicated):
# - for gradient in replicated:
# -     total += gradient.double().square().sum()
# %% wrong: squares in the gradients' own type
# - total += gradient.double().square().sum()
# + total += gradient.square().sum()
# - total += gradient.double().square().sum()
# + total += gradient.square().sum()
# %% wrong: adds up the ranks' norms
# = squares = sum(t.double().square().sum().item() for t in sharded)
# = total = torch.tensor([squares], dtype=torch.double).sqrt()
# = dist.all_reduce(total)
# = total += sum(t.double().square().sum().item() for t in replicated) ** 0.5
# = norm = total.item()
# = for gradient in (*sharded, *replicated):
# =     gradient.mul_(min(1.0, max_norm / norm))
# = return norm
# %% wrong: always scales to the threshold
# - gradient.mul_(min(1.0, max_norm / norm))
# + gradient.mul_(max_norm / norm)
# %% wrong: a rank without shards does not call the collective
# - for gradient in sharded:
# -     total += gradient.double().square().sum()
# - dist.all_reduce(total)
# + if sharded:
# +     for gradient in sharded:
# +         total += gradient.double().square().sum()
# +     dist.all_reduce(total)
