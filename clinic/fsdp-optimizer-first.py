r"""The loss does not move: the optimizer was built before fully_shard.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch12_fsdp
signature: the loss stays at
guard: does not hold weight and 1 more.*built before fully_shard

You see: the loss does not move at all, although there are gradients and their norm
looks healthy.

Cause: `fully_shard` replaces each parameter by a shard of its own, a new tensor. The
optimizer still holds the old ones, which never get a gradient, so `step` skips them.
`parallelize_module` does the same.

Cure: shard first, then build the optimizer from `model.parameters()`, before the first
forward: while a unit is gathered, `parameters()` gives the gathered ones.

Next time: check that each parameter of the model is in the optimizer, by `id`.

Links: https://github.com/pytorch/pytorch/issues/149205 (a forward before the optimizer was built: no updates)
https://github.com/mosaicml/composer/pull/3822 (a trainer points the optimizer at the new parameters)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
model = nn.Linear(4, 4)
x, losses = torch.ones(2, 4), []

# %% broken
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fully_shard(model)
for _ in range(3):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("loss", *(f"{loss:.3f}" for loss in losses))

# %% fixed
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("loss", *(f"{loss:.3f}" for loss in losses))

# %% invariant: three small steps downhill on one batch make its loss smaller
assert losses[-1] < losses[0], f"the loss stays at {losses[0]:.3f}"

# %% guarded
from allranks.guard import Guard

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fully_shard(model)
watch = Guard(model, optimizer)
