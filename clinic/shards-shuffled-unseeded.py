r"""Each rank shuffles the list of shards in its own order.

class: data
symptom: silent
runs on: 2 ranks
chapter: ch9_data
signature: \d+ samples came, \d+ of them distinct
guard: on more than one rank

You see: nothing. In an epoch, some samples come several times and others never. The
next epoch hits different samples, so the loss just falls a little more slowly.

Cause: `shards[rank::world_size]` divides a list only if it is the same list on all
ranks. `random.shuffle` without a seed gives each process its own order, and so does a
seed that contains the rank, or one that DataLoader draws for each rank's workers.

Cure: shuffle with a separate generator, whose seed is the same on all ranks and changes
with the epoch: `random.Random(seed + epoch).shuffle(shards)`, then take the part.

Next time: gather the numbers of the samples that each rank read in an epoch, and count
how many are distinct.

Links: https://github.com/huggingface/datasets/issues/5696 (shuffled shards under DDP need one seed on all ranks)
"""

# %% given
import random

from torch.utils.data import DataLoader, IterableDataset

order_of_my_own = random.Random(rank)  # as a shuffle without a seed has


class Shards(IterableDataset):
    def __init__(self, order):
        self.order = order

    def __iter__(self):
        shards = list(range(8))
        self.order.shuffle(shards)
        for shard in shards[rank::world_size]:
            yield from range(10 * shard, 10 * shard + 10)


# %% broken
loader = DataLoader(Shards(order_of_my_own), batch_size=5)
mine = [int(i) for batch in loader for i in batch]
print(len(mine), "samples")

# %% fixed
epoch = 0
loader = DataLoader(Shards(random.Random(epoch)), batch_size=5)
mine = [int(i) for batch in loader for i in batch]
print(len(mine), "samples")

# %% invariant: all ranks together read each sample once
read = [None] * world_size
dist.all_gather_object(read, mine)
every = sum(read, [])
count = f"{len(every)} samples came, {len(set(every))} of them distinct"
assert sorted(every) == list(range(80)), count

# %% guarded
from allranks.guard import Guard

watch = Guard(torch.nn.Linear(1, 1), skip="parameters")
loader = DataLoader(Shards(order_of_my_own), batch_size=5)
for batch in watch.epoch(loader, 0):
    pass
