r"""Each rank splits training and validation data differently.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: \d+ of \d+ validation samples were trained on
guard: value trains_on.* is not the same on all ranks

You see: validation looks better than it should, and the test set shows it later.

Cause: `random_split` draws from the global random state. Seeds that differ by rank, as
data augmentation needs them, therefore give each rank a different split, and what one
rank holds back for validation, another trains on.

Cure: give the split a generator of its own, with one seed for all ranks. Or split once
and save the indices.

Next time: gather the validation indices of all ranks and intersect them with the
training indices of all ranks. Ranks that are forked after seeding share the random
state, so a test on one machine may hide it.

Links: https://github.com/Lightning-AI/pytorch-lightning/issues/7728 (random_split per process puts validation data into training)
https://github.com/TensorAuto/OpenTau/pull/498 (per-rank seeds gave another split on every rank)
"""

# %% given
from torch.utils.data import random_split

samples = range(64)
torch.manual_seed(1234 + rank)  # for augmentation
parts = [48, 16]

# %% broken
train, validation = random_split(samples, parts)
shard = list(train)[rank::world_size]
print(f"trains on {len(shard)}, validates on {len(validation)}")

# %% fixed
split = torch.Generator().manual_seed(1234)
train, validation = random_split(samples, parts, split)
shard = list(train)[rank::world_size]
print(f"trains on {len(shard)}, validates on {len(validation)}")

# %% invariant: no rank has trained on another rank's validation samples
shards = [None] * world_size
dist.all_gather_object(shards, shard)
leaked = set(validation) & set().union(*shards)
seen = f"{len(leaked)} of {len(validation)} validation samples"
assert not leaked, f"{seen} were trained on"

# %% guarded
from allranks.guard import Guard

train, validation = random_split(samples, parts)
Guard().same(trains_on=torch.tensor(train.indices))
