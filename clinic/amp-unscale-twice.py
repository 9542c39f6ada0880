r"""`unscale_()` has already been called: it runs in each micro-batch.

class: AMP
symptom: crash
runs on: one process
chapter: ch10_precision
signature: RuntimeError: unscale_\(\) has already been called on this optimizer since the last update

You see: `unscale_() has already been called on this optimizer since the last update()`
as soon as gradients are accumulated.

Cause: `unscale_` divides the gradients in place. A second call would divide them again,
so the scaler refuses it until `update()`. With accumulation the optimizer steps only
every k micro-steps, but the clipping, with its `unscale_`, was left in the inner loop.

Cure: unscale, clip, step and update together, once for each optimizer step.

Next time: write the loop so that these four calls stand in one block, behind one `if`.

Links: https://github.com/microsoft/Swin-Transformer/issues/311 (mixed precision and accumulation steps)
https://github.com/huggingface/accelerate/issues/641 (clipping inside of gradient accumulation)
https://github.com/huggingface/transformers/issues/24840 (more accumulation steps than batches)
"""

# %% given
from torch import nn

model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
batches = [torch.ones(1, 1), torch.ones(1, 1)]

# %% broken
for x in batches:
    scaler.scale(model(x).square().mean()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
print("one step after", len(batches), "micro-steps")

# %% fixed
for x in batches:
    scaler.scale(model(x).square().mean()).backward()
scaler.unscale_(optimizer)
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
print("one step after", len(batches), "micro-steps")

# %% signs
# nscale_?(?:\(\))? has already been called on this
# unscale_\(\) is being called after step\(\)
