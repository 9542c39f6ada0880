r"""BatchNorm's running statistics come from rank 0 only.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: running mean \S+ instead of
guard: value running_mean.* is not the same on all ranks

You see: training is fine, but evaluation is worse than it should be, most of all if
ranks have small batches or if each rank reads a different part of the data.

Cause: each rank normalizes with its own batch. Before the forward pass of each step DDP
overwrites the running statistics of all ranks with rank 0's, so what the others
collected is lost.

Cure: on GPUs use `SyncBatchNorm`, which also normalizes with all ranks' samples. Or
keep the ranks' statistics apart and average them before saving, as here. GroupNorm and
LayerNorm have no running statistics. (In older versions of torch the argument is
`broadcast_buffers`.)

Next time: compare `running_mean` with the mean of what all ranks fed into the layer.

Links: https://github.com/mlcommons/training/issues/289 (evaluation uses one GPU's statistics only)
https://github.com/huggingface/pytorch-image-models/issues/110 (DDP copies rank 0's statistics; when to average them)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

batches = torch.tensor([[[0.0], [2.0]], [[1.0], [5.0]]]) * (1 + rank)
model = nn.BatchNorm1d(1, momentum=None)  # the mean over all batches

# %% broken
ddp = DistributedDataParallel(model)
for x in batches:
    ddp(x)
print(f"running mean {model.running_mean.item():g}")

# %% fixed
ddp = DistributedDataParallel(model, forward_sync_buffers=False)
for x in batches:
    ddp(x)
print(f"running mean {model.running_mean.item():g}")
mean, square = model.running_mean, model.running_var + model.running_mean**2
for moment in mean, square:
    dist.all_reduce(moment)
    moment /= world_size
model.running_var.copy_(square - mean**2)
print(f"of all ranks {model.running_mean.item():g}")

# %% invariant: rank 0, which saves, has the mean of all ranks' samples
union = [torch.empty_like(batches) for _ in range(world_size)]
dist.all_gather(union, batches)
got, want = model.running_mean.item(), torch.stack(union).mean().item()
assert rank > 0 or got == want, f"running mean {got:g} instead of {want:g}"

# %% guarded
from allranks.guard import Guard

ddp = DistributedDataParallel(model)
watch = Guard(ddp)
for x in batches:
    ddp(x)
watch.same(running_mean=model.running_mean)  # before it is saved
