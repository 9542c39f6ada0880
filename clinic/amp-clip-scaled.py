r"""Gradients are clipped before they are unscaled.

class: silent wrong
symptom: silent
runs on: one process
chapter: ch10_precision
signature: step of \S+ instead of
guard: Clipped while still scaled

You see: the model hardly learns. The logged gradient norm is in the thousands, and it
jumps by a factor of two now and then.

Cause: under a `GradScaler` the gradients are multiplied by its scale, 65536 at the
start. A threshold of 1 clips these large gradients to norm 1, and `step` then divides
by the scale, so almost nothing of them is left.

Cure: call `scaler.unscale_(optimizer)` before clipping. `step` notices that, and does
not divide again.

Next time: log the gradient norm. If it moves with `scaler.get_scale()`, it is the
scaled one.

Links: https://github.com/pytorch/examples/issues/1196 (unscale_ missing before clipping in an example)
https://github.com/milesial/Pytorch-UNet/issues/468 (gradients clipped before unscaling)
"""

# %% given
from torch import nn

model = nn.Linear(2, 1, bias=False)
nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

# %% broken
scaler.scale(model(torch.tensor([[0.3, 0.4]])).sum()).backward()
norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
print(f"norm {norm.item():g}")

# %% fixed
scaler.scale(model(torch.tensor([[0.3, 0.4]])).sum()).backward()
scaler.unscale_(optimizer)
norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
print(f"norm {norm.item():g}")

# %% invariant: a gradient of norm 0.5 is below the threshold, and the step is as long
step = (1 - model.weight).norm().item()
assert abs(step - 0.5) < 1e-5, f"step of {step:.4f} instead of 0.5"

# %% guarded
from allranks.guard import Guard

watch = Guard(model, optimizer, scaler=scaler)
scaler.scale(model(torch.tensor([[0.3, 0.4]])).sum()).backward()
norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
watch.step()
scaler.step(optimizer)
scaler.update()
