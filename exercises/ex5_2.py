"""A sampler of your own.

Ranks: 1, 3, 4
Minutes: 15

Write what `DistributedSampler` does for training.

`ex5_2(num_samples, epoch, seed)` is called on every rank. Return the list of indices
that this rank draws in this epoch. With W ranks and n = `num_samples`, the check looks
at the lists of all ranks:

- Every rank draws ⌈n / W⌉ indices, so that all make equally many steps.
- Together they draw every sample, and repeat as few as possible. n may be smaller than
  W.
- The order is random. It differs from epoch to epoch and from `seed` to `seed`, but the
  same arguments give the same order.
- A rank does not always draw from the same samples.

Leave the global random generators alone, because other code draws dropout masks from
them.

Hint 1: The ranks don't talk to each other. What must they all know to share one
shuffled list?
Hint 2: Let all ranks shuffle the whole list, each with a generator of its own that
starts from the same number, made of seed and epoch. Lengthen the list to a multiple of
W by starting over from its beginning. Then each rank takes every W-th index.
Hint 3: `dice = torch.Generator().manual_seed(seed + epoch)`,
`torch.randperm(num_samples, generator=dice)`; `itertools.cycle` and `islice` lengthen a
list; `order[rank::world_size]`.
"""


# %% solution
def ex5_2(num_samples, epoch, seed):
    """Return the list of indices that this rank draws in this epoch."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dice = torch.Generator().manual_seed(seed + epoch)  # the same on all ranks
    order = torch.randperm(num_samples, generator=dice).tolist()
    total = -(-num_samples // world_size) * world_size  # rounded up
    order = list(itertools.islice(itertools.cycle(order), total))
    return order[rank::world_size]


# %% check
from collections import Counter

SIZES = {
    "a multiple of the world size": 48,
    "a remainder": 101,
    "fewer samples than ranks": 2,
    "one sample": 1,
}
MASKS = """. With one seed for all ranks, all would
    now draw the same dropout masks. Use a torch.Generator of your own."""


def drawn(answer, *args):
    """Return what each rank draws; refuse an answer that moves a global generator."""
    with undrawn(MASKS, ". Use one of your own."):
        mine = answer(*args)
    return everyone(integers(mine, "a list of indices"))


def judge(every, num):
    """Check that all ranks draw equally much, and repeat as few as possible."""
    share, lengths = -(-num // world_size), [len(part) for part in every]
    if len(set(lengths)) > 1:
        raise Wrong(f"""the ranks draw {lengths} of {num} samples: the one with more
            would wait for ever in its last step.""")
    counts = Counter(index for part in every for index in part)
    if odd := [index for index in counts if not 0 <= index < num]:
        raise Wrong(f"""index {odd[0]} is drawn; with {num} samples, 0 to {num - 1}
            exist.""")
    if lost := num - len(counts):
        twice = sum(count - 1 for count in counts.values())
        raise Wrong(f"""{lost} of {num} samples are drawn by no rank, and {twice} draws
            repeat a sample; each rank draws {lengths[0]}.""")
    if lengths[0] != share:
        raise Wrong(f"""each rank draws {lengths[0]} of {num} samples; {share} each
            would do.""")
    (index, most), enough = counts.most_common(1)[0], -(-share * world_size // num)
    if most > enough:
        raise Wrong(f"""index {index} is drawn {most} times, and {enough} would do: fill
            up with different samples, from the beginning of the shuffled list.""")


def check(answer, case):
    for name, num in case.each(SIZES):
        judge(drawn(answer, num, 0, 7), num)
        judge(drawn(answer, num, 1, 7), num)
    case("epochs and seeds")
    pairs = (0, 7), (0, 7), (1, 7), (0, 8)
    first, again, second, other = (drawn(answer, 96, *pair) for pair in pairs)
    if first != again:
        raise Wrong("the same epoch and seed gave two orders.")
    if first == second:
        raise Wrong("epochs 0 and 1 have the same order: the epoch is not used.")
    if first == other:
        raise Wrong("seeds 7 and 8 give the same order: the seed is not used.")
    for part in first:
        steps = Counter(b - a for a, b in itertools.pairwise(part))
        step, times = steps.most_common(1)[0]
        if times > len(part) / 2:
            raise Wrong(f"the order is not random: {times} times the next is {step:+}.")
    same = [r for r in range(world_size) if set(first[r]) == set(second[r])]
    if same and world_size > 1:
        raise Wrong(f"""rank {same[0]} draws from the same {len(set(first[same[0]]))}
            samples in epochs 0 and 1, only in another order: shuffle first, then share
            out.""")
