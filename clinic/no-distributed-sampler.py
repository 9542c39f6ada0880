r"""Every rank reads the whole dataset.

class: data
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: AssertionError: 16 samples were read, 8 are there
guard: each of the 2 ranks goes through all 8 samples

You see: no error, but an epoch takes as many steps on eight GPUs as on one. (The
`AssertionError` comes from our check: 16 samples were read, but there are only 8.) The
training is correct except for one thing: the ranks do not share the work.

Cause: DDP averages gradients and never looks at the data. Which samples a rank reads is
up to its loader, and a loader without a sampler reads all of them.

Cure: give the loader a `DistributedSampler`, which deals the indices out to the ranks.

Next time: print `len(loader)` on one process and on many: on W ranks, it should be W
times smaller. Equal losses on all ranks are another sign, if nothing is shuffled.

Links: https://github.com/PatrickHua/SimSiam/issues/16 (without DistributedSampler an epoch reads the data twice)
https://github.com/clovaai/voxceleb_trainer/issues/98 (the dataset is not split between the GPUs)
"""

# %% given
from torch.utils.data import DataLoader, DistributedSampler

dataset = range(8)
seen = []

# %% broken
sampler = None
loader = DataLoader(dataset, batch_size=2, sampler=sampler)
for batch in loader:
    seen += batch.tolist()
print(f"{len(loader)} steps over", seen)

# %% fixed
sampler = DistributedSampler(dataset, shuffle=False)
loader = DataLoader(dataset, batch_size=2, sampler=sampler)
for batch in loader:
    seen += batch.tolist()
print(f"{len(loader)} steps over", seen)

# %% invariant: all ranks together read each sample once
read = [None] * world_size
dist.all_gather_object(read, seen)
everyone = sorted(sum(read, []))
count = f"{len(everyone)} samples were read, {len(dataset)} are there"
assert everyone == list(dataset), count

# %% guarded
from allranks.guard import Guard

watch = Guard()
loader = DataLoader(dataset, batch_size=2, sampler=None)
for batch in watch.epoch(loader, 0):
    watch.step()
