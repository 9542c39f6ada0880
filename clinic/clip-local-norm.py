r"""Sharded gradients are clipped by each shard's own norm.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch10_precision
signature: norm of the clipped gradient \S+ instead of
guard: norm.* is not the same on all ranks: it is 3 on rank 0 and 4 on rank 1

You see: the norms that the ranks log differ. Training behaves as if the threshold were
higher, and more so with more ranks.

Cause: under FSDP2 a rank holds a part of each gradient. The norm of that part is not
the norm of the gradient, so each rank scales its part by a different factor, which even
changes the gradient's direction.

Cure: `torch.nn.utils.clip_grad_norm_`: it sees the sharding and takes the norm over all
ranks. For the log use `norm.full_tensor()`: the norm is a DTensor, and in older
versions of torch its `item()` is the rank's own share.

Next time: log the norm on every rank: it must be the same number.

Links: https://github.com/pytorch/pytorch/issues/170862 (torch 2.9: the norm that is returned looks local)
https://github.com/baidu-baige/LoongForge/pull/152 (hand-written norm and clipping replaced under FSDP2)
https://github.com/radixark/miles_diffusion/pull/35 (logged norm was that of the local shard)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
model = nn.Linear(1, 2, bias=False)
nn.init.ones_(model.weight)
scale = torch.tensor([3.0, 4.0])
fully_shard(model)
(model(torch.ones(1, 1)) * scale).sum().backward()

# %% broken
parts = [p.grad.to_local().norm() for p in model.parameters()]
norm = torch.stack(parts).norm()
for parameter in model.parameters():
    parameter.grad.to_local().mul_(1 / max(norm, 1))
print(f"norm before {norm.item():g}")

# %% fixed
norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
print(f"norm before {norm.item():g}")

# %% invariant: after clipping to 1, the whole gradient has norm 1
after = model.weight.grad.full_tensor().norm().item()
assert after < 1.001, f"norm of the clipped gradient {after:.2f} instead of 1"

# %% guarded
from allranks.guard import Guard

watch = Guard(model)
parts = [p.grad.to_local().norm() for p in model.parameters()]
norm = torch.stack(parts).norm()
watch.same(norm=norm)
