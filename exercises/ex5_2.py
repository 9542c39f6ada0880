"""A sampler of your own.

Chapter: 5
Ranks: 1, 3, 4
Minutes: 15

Write what `DistributedSampler` does for training: return the list of indices that this
rank draws in this epoch. With W ranks and n = `num_samples`, this holds in each epoch:

- Every rank draws ⌈n / W⌉ indices, so that all make equally many steps.
- Together they draw every sample, and repeat as few as possible (n may be smaller than
  W).
- The order is random, and differs from epoch to epoch and from `seed` to `seed`, but
  the same arguments give the same order. A rank does not always draw from the same
  samples.

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

# %% stub
import itertools

import torch
import torch.distributed as dist


def ex5_2(num_samples, epoch, seed):
    """Return the list of indices that this rank draws in this epoch."""
    raise NotImplementedError


# %% solution
import itertools

import torch
import torch.distributed as dist


def ex5_2(num_samples, epoch, seed):
    """Return the list of indices that this rank draws in this epoch."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dice = torch.Generator().manual_seed(seed + epoch)  # the same on all ranks
    order = torch.randperm(num_samples, generator=dice).tolist()
    total = -(-num_samples // world_size) * world_size  # rounded up
    order = list(itertools.islice(itertools.cycle(order), total))
    return order[rank::world_size]


# %% check
import itertools
import random
from collections import Counter

SIZES = {
    "a multiple of the world size": 48,
    "a remainder": 101,
    "fewer samples than ranks": 2,
    "one sample": 1,
}


def drawn(answer, *args):
    """Return what each rank draws; refuse an answer that moves a global generator."""
    torch.manual_seed(rank)
    random.seed(rank)
    before = torch.get_rng_state(), random.getstate()
    mine = answer(*args)
    if not torch.equal(torch.get_rng_state(), before[0]):
        raise Wrong(
            "it moved torch's global generator. With one seed for all ranks, all would "
            "now draw the same dropout masks. Use a torch.Generator of your own."
        )
    if random.getstate() != before[1]:
        raise Wrong("it moved Python's global generator. Use one of your own.")
    try:
        mine = [int(index) for index in mine]
    except (TypeError, ValueError):
        raise Wrong(f"it returned {mine!r:.60}, not a list of indices.") from None
    every = [None] * world_size
    dist.all_gather_object(every, mine)
    return every


def judge(every, num):
    """Check that all ranks draw equally much, and repeat as few as possible."""
    share = -(-num // world_size)
    lengths = [len(part) for part in every]
    if len(set(lengths)) > 1:
        raise Wrong(
            f"the ranks draw {lengths} of {num} samples: the one with more would wait "
            "for ever in its last step."
        )
    counts = Counter(index for part in every for index in part)
    if odd := [index for index in counts if not 0 <= index < num]:
        raise Wrong(
            f"index {odd[0]} is drawn; with {num} samples, 0 to {num - 1} exist."
        )
    lost = num - len(counts)
    twice = sum(count - 1 for count in counts.values())
    if lost:
        raise Wrong(
            f"{lost} of {num} samples are drawn by no rank, and {twice} draws repeat a "
            f"sample; each rank draws {lengths[0]}."
        )
    if lengths[0] != share:
        raise Wrong(
            f"each rank draws {lengths[0]} of {num} samples; {share} each would do."
        )
    (index, most), enough = counts.most_common(1)[0], -(-share * world_size // num)
    if most > enough:
        raise Wrong(
            f"index {index} is drawn {most} times, and {enough} would do: fill up with "
            "different samples, from the beginning of the shuffled list."
        )


def check(answer, case):
    for name, num in SIZES.items():
        case(name)
        first = drawn(answer, num, 0, 7)
        judge(first, num)
        judge(drawn(answer, num, 1, 7), num)
    case("epochs and seeds")
    num = 96
    first, again, second, other = (
        drawn(answer, num, *pair) for pair in [(0, 7), (0, 7), (1, 7), (0, 8)]
    )
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
        raise Wrong(
            f"rank {same[0]} draws from the same {len(set(first[same[0]]))} samples in "
            "epochs 0 and 1, only in another order: shuffle first, then share out."
        )


# %% right: blocks in place of strides, Python's generator, repeats from the end
import random


def ex5_2(num_samples, epoch, seed):
    order = list(range(num_samples))
    random.Random(f"{seed}, {epoch}").shuffle(order)
    share = -(-num_samples // dist.get_world_size())
    while len(order) < share * dist.get_world_size():
        order.append(order[-num_samples])
    return order[dist.get_rank() * share :][:share]


# %% right: torch's own
from torch.utils.data import DistributedSampler


def ex5_2(num_samples, epoch, seed):
    sampler = DistributedSampler(range(num_samples), seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


# %% wrong: forgets the epoch
# + from torch.utils.data import DistributedSampler
# = return list(DistributedSampler(range(num_samples), seed=seed))
# %% wrong: shuffles with another seed on each rank
# = rank, world_size = dist.get_rank(), dist.get_world_size()
# = dice = torch.Generator().manual_seed(seed + epoch + 1000 * rank)
# = order = torch.randperm(num_samples, generator=dice).tolist()
# = order = order * world_size
# = return order[rank : -(-num_samples // world_size) * world_size : world_size]
# %% wrong: does not make the shares equal
# = dice = torch.Generator().manual_seed(seed + epoch)
# = order = torch.randperm(num_samples, generator=dice).tolist()
# = return order[dist.get_rank() :: dist.get_world_size()]
# %% wrong: drops the tail
# = dice = torch.Generator().manual_seed(seed + epoch)
# = order = torch.randperm(num_samples, generator=dice).tolist()
# = total = num_samples // dist.get_world_size() * dist.get_world_size()
# = return order[:total][dist.get_rank() :: dist.get_world_size()]
# %% wrong: fills up from the front once, which is too short for few samples
# = dice = torch.Generator().manual_seed(seed + epoch)
# = order = torch.randperm(num_samples, generator=dice).tolist()
# = order += order[: -num_samples % dist.get_world_size()]
# = return order[dist.get_rank() :: dist.get_world_size()]
# %% wrong: seeds the global generator
# = torch.manual_seed(seed + epoch)
# = order = torch.randperm(num_samples).tolist() * dist.get_world_size()
# = total = -(-num_samples // dist.get_world_size()) * dist.get_world_size()
# = return order[:total][dist.get_rank() :: dist.get_world_size()]
# %% wrong: shares out first, then shuffles the share
# = rank, world_size = dist.get_rank(), dist.get_world_size()
# = total = -(-num_samples // world_size) * world_size
# = share = [index % num_samples for index in range(rank, total, world_size)]
# = dice = torch.Generator().manual_seed(seed + epoch)
# = return [share[i] for i in torch.randperm(len(share), generator=dice)]
# %% wrong: does not shuffle
# = world_size = dist.get_world_size()
# = total = -(-num_samples // world_size) * world_size
# = order = [(index + epoch + seed) % num_samples for index in range(total)]
# = return order[dist.get_rank() :: world_size]
# %% wrong: seeds Python's global generator
# + import random
# = world_size = dist.get_world_size()
# = random.seed(seed + epoch)
# = order = random.sample(range(num_samples), num_samples) * world_size
# = total = -(-num_samples // world_size) * world_size
# = return order[:total][dist.get_rank() :: world_size]
# %% wrong: fills up with indices that don't exist
# = world_size = dist.get_world_size()
# = dice = torch.Generator().manual_seed(seed + epoch)
# = total = -(-num_samples // world_size) * world_size
# = return torch.randperm(total, generator=dice)[dist.get_rank() :: world_size]
# %% wrong: every rank draws everything
# = dice = torch.Generator().manual_seed(seed + epoch)
# = return torch.randperm(num_samples, generator=dice).tolist()
# %% wrong: rank 0 shuffles for all, in a way that nobody can repeat
# = world_size, dice = dist.get_world_size(), torch.Generator()
# = dice.seed()
# = order = torch.randperm(num_samples, generator=dice)
# = dist.broadcast(order, src=0)
# = total = -(-num_samples // world_size) * world_size
# = return order.repeat(world_size)[:total][dist.get_rank() :: world_size].tolist()
# %% wrong: forgets the seed
# = world_size = dist.get_world_size()
# = dice = torch.Generator().manual_seed(epoch)
# = order = torch.randperm(num_samples, generator=dice).repeat(world_size)
# = total = -(-num_samples // world_size) * world_size
# = return order[:total][dist.get_rank() :: world_size].tolist()
# %% wrong: fills up with one sample again and again
# - total = -(-num_samples // world_size) * world_size  # rounded up
# - order = list(itertools.islice(itertools.cycle(order), total))
# + order += [order[0]] * (-num_samples % world_size)
