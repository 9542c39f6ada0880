r"""The global batch grew, because the batch size is per rank.

class: data
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: AssertionError: a step consumes 16 samples instead of 8
guard: a step takes 16 samples \(\[8, 8\] by rank\), not 8

You see: nothing. With more GPUs the loss falls more slowly per epoch, and tuned
learning rates no longer fit.

Cause: each rank has a loader of its own, and `batch_size` is what that loader hands
out. The step averages over all ranks, so the optimizer's batch is W times larger.
`nn.DataParallel` means the opposite: there the batch is split.

Cure: decide which of the two should stay the same. To keep the optimizer's batch,
divide `batch_size` by the number of ranks, as here. To keep the batch per GPU, leave
`batch_size` alone and tune the learning rate again.

Next time: print the global batch at the start of each run: batch size x ranks x
accumulated steps.

Links: https://github.com/Lightning-AI/pytorch-lightning/issues/8826 (the batch size is per process under DDP, not under DP)
https://github.com/pytorch/examples/issues/640 (why an example divides the batch size by the processes)
"""

# %% given
from torch.utils.data import DataLoader, DistributedSampler

BATCH = 8  # that the learning rate was tuned for
dataset = range(32)

# %% broken
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
print(f"{len(loader)} steps in an epoch")

# %% fixed
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=BATCH // world_size, sampler=sampler)
print(f"{len(loader)} steps in an epoch")

# %% invariant: a step consumes as many samples as on one process
step = torch.tensor(len(next(iter(loader))))
dist.all_reduce(step)
assert step == BATCH, f"a step consumes {step} samples instead of {BATCH}"

# %% guarded
from allranks.guard import Guard

sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
watch = Guard()
for batch in watch.epoch(loader, 0, global_batch=BATCH):
    watch.step()
