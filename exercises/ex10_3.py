"""Clip by the norm of a gradient that is spread over ranks.

Ranks: 1, 2, 4
Minutes: 20

Clip a gradient whose parts lie on different ranks.

`ex10_3(sharded, replicated, max_norm)` is called on every rank with two lists of
gradient tensors and a limit. Together, the lists of all ranks are one gradient:

* The tensors in `sharded` are this rank's own parts of the gradient. Some may be empty,
  and a rank may have none at all.
* The tensors in `replicated` are equal on all ranks, as after an all_reduce. Count them
  only *once*.

Scale all of them in place so that the norm of the whole gradient is at most `max_norm`.
If the norm is smaller, leave the gradient as it is. Return the norm before clipping, as
a float, the same on all ranks.

Some gradients are float16, whose largest number is 65504, and some are bfloat16, which
has only eight significant bits. The norm must still be right to five digits. It is
neither 0 nor infinite.

Hint 1: Norms of parts cannot be added. What can? And how many times does the sum over W
ranks count what all of them hold?
Hint 2: Add the squares of the shards over the ranks, then the squares of what is
replicated, once. Square in float32 or more: 300² overflows in float16.
Hint 3: `dist.all_reduce` of one number, which a rank without shards brings too; then
`gradient.mul_(min(1, max_norm / norm))`.
"""


# %% solution
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
    seed = dice(seed)  # so any rank can make them
    draws = [torch.rand(num, generator=seed) + 0.5 for num in sizes]
    return [(magnitude * draw).to(dtype) for draw in draws]


def check(answer, case):
    for name, (sizes, same, dtype, magnitude, most) in case.each(CASES):
        parts = [made(sizes[r], 10 + r, dtype, magnitude) for r in range(world_size)]
        shared = made(same, 5, dtype, magnitude)
        given = [[t.clone() for t in kind] for kind in (parts[rank], shared)]
        got = answer(*given, most)
        if not isinstance(got, float):
            raise Wrong(f"it returned {type(got).__name__}, not a float.")
        squares = [[t.double().square().sum() for t in p] for p in (*parts, shared)]
        *squares, ours = [float(sum(of_part)) for of_part in squares]
        norm = (sum(squares) + ours) ** 0.5
        compare(f"the norm that rank {rank} returns", got, norm, {
            "It counts what is replicated once per rank.":
                (sum(squares) + world_size * ours) ** 0.5,
            "It leaves out the other ranks' shards.": (squares[rank] + ours) ** 0.5,
            "It adds norms, not their squares.": sum(s**0.5 for s in [*squares, ours]),
            "It leaves out what is replicated.": sum(squares) ** 0.5,
            "It is the norm after clipping.": min(norm, most),
        }, rtol=1e-5)  # fmt: skip
        kinds = zip(("shard", "replicated gradient"), (parts[rank], shared), given)
        for kind, whole, left in kinds:
            for i, (before, after) in enumerate(zip(whole, left)):
                want = (before.double() * min(1.0, most / norm)).to(dtype)
                compare(f"rank {rank}'s {kind} {i}", after, want, {
                    "It is not clipped.": before,
                    "A short gradient must not grow.": before * (most / norm),
                }, 1e-4 if dtype == F32 else 0.02, 1e-7)  # fmt: skip
