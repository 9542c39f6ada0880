r"""The same order in every epoch: set_epoch is never called.

class: data
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: AssertionError: epochs 0 and 1 have one order
guard: start of epoch 1: the sampler's epoch is still 0

You see: nothing. Every epoch goes through the samples in the same order, in the same
batches, and the model ends slightly worse than on one GPU.

Cause: a `DistributedSampler` must give all ranks one permutation to share out. So it
does not draw from torch's generator, but seeds its own with `seed + epoch`, and the
epoch stays 0 until `set_epoch` changes it.

Cure: call `sampler.set_epoch(epoch)` on every rank, before the loop over the loader.

Next time: print the first indices of two epochs. Or look at the loss curve: a pattern
that repeats each epoch to the last wiggle is an order that repeats.

Links: https://github.com/pytorch/pytorch/issues/31771 (a shuffling sampler repeats its order)
https://github.com/kan-bayashi/ParallelWaveGAN/issues/177 (set_epoch missing in a training script)
"""

# %% given
from torch.utils.data import DataLoader, DistributedSampler

sampler = DistributedSampler(range(8))
loader = DataLoader(range(8), batch_size=2, sampler=sampler)
orders = []

# %% broken
for epoch in range(3):
    orders.append([i for batch in loader for i in batch.tolist()])
print(*orders)

# %% fixed
for epoch in range(3):
    sampler.set_epoch(epoch)
    orders.append([i for batch in loader for i in batch.tolist()])
print(*orders)

# %% invariant: no two epochs have the same order
assert orders[0] != orders[1], f"epochs 0 and 1 have one order, {orders[0]}"

# %% guarded
from allranks.guard import Guard

watch = Guard()
for epoch in range(3):
    for batch in watch.epoch(loader, epoch):
        watch.step()
