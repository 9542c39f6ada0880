r"""Each rank clips its gradient before averaging.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch10_precision
signature: gradient \[\S+ \S+\] instead of
guard: the gradient of weight is not the mean

You see: training is slower than in one process and less stable, though the threshold is
the same.

Cause: the mean of clipped gradients is not the clipped mean. A rank with a long
gradient is cut down while one with a short gradient is not, so the mean turns towards
the short one. This happens where gradients are reduced by hand, or where clipping
stands inside `no_sync`.

Cure: reduce, then clip. Under DDP, `backward` of the synchronized pass has reduced when
it returns.

Next time: log the norm before clipping: after the reduction it is the same on all
ranks.

Links: https://github.com/horovod/horovod/issues/1346 (clipping before or after the reduction differs by framework)
https://github.com/mindspore-lab/mindcv/issues/603 (clip should come after the reduction)
"""

# %% given
from torch import nn

torch.manual_seed(0)
model = nn.Linear(2, 1, bias=False)
mine = torch.tensor([100.0, 0.0] if rank == 0 else [0.0, 1.0])

# %% broken
model(mine).sum().backward()
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
dist.all_reduce(model.weight.grad)
model.weight.grad /= world_size
print("gradient", *(f"{g:.2f}" for g in model.weight.grad[0].tolist()))

# %% fixed
model(mine).sum().backward()
dist.all_reduce(model.weight.grad)
model.weight.grad /= world_size
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
print("gradient", *(f"{g:.2f}" for g in model.weight.grad[0].tolist()))

# %% invariant: the clipped gradient is that of one process on all samples
mean = mine.clone()
dist.all_reduce(mean)
mean /= world_size
want = (mean / mean.norm().clamp(min=1)).tolist()
got = model.weight.grad[0].tolist()
close = max(abs(g - w) for g, w in zip(got, want, strict=True)) < 1e-4
shown, right = (" ".join(f"{value:.2f}" for value in v) for v in (got, want))
assert close, f"gradient [{shown}] instead of [{right}]"

# %% guarded
from allranks.guard import Guard

watch = Guard(model)
model(mine).sum().backward()
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
dist.all_reduce(model.weight.grad)
model.weight.grad /= world_size
watch.step()
