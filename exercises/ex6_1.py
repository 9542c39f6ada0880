"""Cut the layers into stages.

Ranks: 1
Minutes: 15

A pipeline is as fast as its slowest stage, so the cut matters. `costs[i]` is the time
that layer i takes for one micro-batch. Cut the layers, in their order, into
`num_stages` stages of at least one layer each, so that the slowest stage is as fast as
possible. Return the number of layers of each stage, as a list of `num_stages` integers
whose sum is `len(costs)`.

There are at most 24 layers and 6 stages. If several cuts are equally good, return any
of them.

Hint 1: If you knew where the last stage begins, what would be left to solve?
Hint 2: The same task, smaller: fewer layers, one stage less. Try each end of the first
stage, solve the rest, and keep the cut whose slowest stage is fastest. Many rests are
the same: remember them.
Hint 3: `@functools.cache` on `best(first, stages)`, which returns the pair `(slowest,
sizes)`; then `min` over `end` of `(max(sum(costs[first:end]), rest), (end - first,
*sizes))`.
"""


# %% solution
def ex6_1(costs, num_stages):
    """Return the sizes of the stages whose slowest one is fastest."""

    @functools.cache
    def best(first, stages):  # of the layers from first on: (slowest, sizes)
        if stages == 1:
            return sum(costs[first:]), (len(costs) - first,)
        cuts = []
        for end in range(first + 1, len(costs) - stages + 2):
            rest, sizes = best(end, stages - 1)
            cuts.append((max(sum(costs[first:end]), rest), (end - first, *sizes)))
        return min(cuts)

    return list(best(0, num_stages)[1])


# %% check
from allranks.topics.pipelines import sums as pipelines

SEED = dice(6)
CASES = {
    "equal layers": ([1] * 8, 4),
    "nine equal layers": ([1] * 9, 4),
    "ten equal layers": ([1] * 10, 4),
    "a slow head": ([1] * 11 + [4], 4),
    "a slow first layer": ([9, 1, 1, 1, 1, 1, 1, 1], 3),
    "a slow layer in the middle": ([1, 2, 1, 8, 1, 1, 2, 1, 1], 4),
    "fractions": ([0.5, 1.5, 0.25, 2.0, 0.75, 1.0, 0.5], 3),
    "layers that cost nothing": ([3, 0, 2, 0, 0, 4, 1], 3),
    "one stage": ([2, 3, 4], 1),
    "as many stages as layers": ([5, 1, 1, 7], 4),
    "more at the end than at the start": ([1, 1, 1, 2, 2, 3, 4, 5], 3),
    "even is not fastest": ([5, 4, 9, 1, 1], 3),
    "13 layers for 3 stages": (torch.randint(1, 20, (13,), generator=SEED).tolist(), 3),
    "24 layers for 6 stages": (torch.randint(1, 20, (24,), generator=SEED).tolist(), 6),
}


def check(answer, case):
    for name, (costs, num_stages) in case.each(CASES):
        given = list(costs)
        sizes = answer(given, num_stages)
        if given != costs:
            raise Wrong(f"it changed `costs` from {costs} to {given}.")
        judge(integers(sizes, "a list of sizes"), costs, num_stages)


def judge(sizes, costs, num_stages):
    """Is it a cut, and is it the best?"""
    task = f"costs {costs} in {num_stages} stages: {sizes}"
    if len(sizes) != num_stages:
        raise Wrong(f"{task} are {len(sizes)} stages.")
    if sum(sizes) != len(costs):
        ends = " These look like ends; sizes are asked for." * (sizes[-1] == len(costs))
        raise Wrong(f"{task} hold {sum(sizes)} layers of {len(costs)}.{ends}")
    if min(sizes) < 1:
        raise Wrong(f"{task}: a stage has no layer; its rank would only pass on.")

    def times(sizes):
        layers = iter(costs)
        return [sum(next(layers) for _ in range(size)) for size in sizes]

    best = list(pipelines.balanced_cut(costs, num_stages))
    mine, right = times(sizes), times(best)
    if max(mine) > max(right):
        raise Wrong(f"""{task} takes {mine}, the slowest {max(mine)}. {best} takes
            {right}: the slowest {max(right)}; the pipeline is
            {max(mine) / max(right) - 1:.0%} faster.""")
