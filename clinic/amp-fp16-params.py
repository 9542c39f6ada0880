r"""Attempting to unscale FP16 gradients: the weights are float16.

class: AMP
symptom: crash
runs on: one process
chapter: ch10_precision
signature: ValueError: Attempting to unscale FP16 gradients

You see: `Attempting to unscale FP16 gradients`, at the first step, often because a
model was loaded in float16 and `fp16` training was switched on as well.

Cause: mixed precision keeps the weights in float32 and computes in float16, and the
scaler divides the gradients of those weights by its scale again. But weights in float16
have gradients in float16, and the small ones are lost when they are unscaled.

Cure: load the weights in float32 and let autocast choose, or train in bfloat16, which
needs no scaler. With adapters, only the trained parameters must be float32.

Next time: look at `{p.dtype for p in model.parameters() if p.requires_grad}`, which
should be float32 and nothing else.

Links: https://github.com/pytorch/pytorch/issues/74739 (why the scaler wants float32 gradients)
https://github.com/mk-minchul/AdaFace/issues/127 (one layer in float16 was enough)
"""

# %% given
from torch import nn

scaler = torch.amp.GradScaler("cpu")
x = torch.ones(4, 2)

# %% broken
model = nn.Linear(2, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(x.half()).float().square().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
print("gradients in", model.weight.grad.dtype)

# %% fixed
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autocast("cpu", dtype=torch.float16):
    loss = model(x).float().square().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
print("gradients in", model.weight.grad.dtype)

# %% signs
# Attempting to unscale FP16 gradients
