r"""DistributedSampler counts some validation samples twice.

class: data
symptom: silent
runs on: 4 ranks
chapter: ch5_ddp
signature: AssertionError: accuracy 0\.8333 instead of 0\.8889
guard: 12 samples were counted \(3, 3, 3, 3 by rank\) of 9

You see: nothing. The validation accuracy depends on the number of GPUs.

Cause: all ranks must do the same number of steps, so a `DistributedSampler` repeats
samples from the beginning until their number is divisible by the number of ranks. Nine
samples on four ranks become twelve. A metric that is summed over the ranks counts the
repeats.

Cure: deal out the indices without padding, and sum counts, not means. Then no step may
run a collective, or the ranks with one batch more hang: evaluate `ddp.module`, since
DDP's forward broadcasts buffers. A sharded model needs all ranks in each step, so there
keep the padding and leave the repeats out of the count. (`drop_last=True` drops
samples.)

Next time: have the metric return how many samples it saw. It must be `len(dataset)`.

Links: https://github.com/pytorch/pytorch/issues/25162 (wrong validation accuracy because of the padding)
https://github.com/mosaicml/composer/pull/2218 (a trainer cuts the padded samples off)
"""

# %% given
from torch.utils.data import DistributedSampler

right = torch.tensor([0.0, 1, 1, 1, 1, 1, 1, 1, 1])  # 8 of 9 answers

# %% broken
mine = list(DistributedSampler(right, shuffle=False))
counts = torch.tensor([right[mine].sum(), len(mine)])
dist.all_reduce(counts)
print(f"samples {mine}: {counts[0]:g} of {counts[1]:g} are right")

# %% fixed
mine = list(range(rank, len(right), world_size))
counts = torch.tensor([right[mine].sum(), len(mine)])
dist.all_reduce(counts)
print(f"samples {mine}: {counts[0]:g} of {counts[1]:g} are right")

# %% invariant: the accuracy is that of one process
got, want = (counts[0] / counts[1]).item(), right.mean().item()
assert abs(got - want) < 1e-6, f"accuracy {got:.4f} instead of {want:.4f}"

# %% guarded
from allranks.guard import Guard

mine = list(DistributedSampler(right, shuffle=False))
counts = torch.tensor([right[mine].sum(), len(mine)])
dist.all_reduce(counts)
accuracy = counts[0] / counts[1]
Guard().metric(accuracy, right[mine].sum(), len(mine), samples=len(right))
