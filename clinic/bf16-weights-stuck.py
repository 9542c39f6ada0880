r"""bfloat16 weights don't move when the steps are small.

class: silent wrong
symptom: silent
runs on: one process
chapter: ch10_precision
signature: weights moved by 0 instead of
beyond: All ranks agree, and it may be on purpose: some optimizers are made for weights in bfloat16.

You see: the loss falls at first and then hardly any more, or fine-tuning ends where it
began. In the checkpoint, the weights of the norm layers are still exactly 1.0.

Cause: the model was loaded or cast to bfloat16, and the optimizer steps on these
weights. From 1.0 the next number down is 0.996 and the next up 1.008, so a step of
0.0001 is rounded away, each time anew. Weights near zero have near neighbors and do
move, which hides it.

Cure: keep the weights in float32, and compute in bfloat16: by `torch.autocast`, or under
FSDP2 by `MixedPrecisionPolicy(param_dtype=torch.bfloat16)`, whose shards stay in
float32. Without room for that, use an optimizer with float32 copies, or one that rounds
at random.

Next time: after ten steps, count the weights that have not moved:
`(before == after).float().mean()` for each parameter.

Links: https://github.com/vllm-project/speculators/pull/765 (every norm weight of released models is exactly 1.0)
https://github.com/workofart/ml-by-hand/pull/85 (weights before and after 100 steps, with and without float32 copies)
https://github.com/NVIDIA/Model-Optimizer/pull/2322 (after 56,000 steps 78 % of two norms' weights are still 1.0)
"""

# %% given
from torch import nn

x = torch.tensor([[1.0, 3.0]])
sign = torch.tensor([[1.0, -1.0]])

# %% broken
model = nn.LayerNorm(2, bias=False).bfloat16()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for _ in range(100):
    optimizer.zero_grad()
    loss = (model(x.to(model.weight.dtype)) * sign).sum()
    loss.backward()
    optimizer.step()
print("weights", [round(w, 4) for w in model.weight.tolist()])

# %% fixed
model = nn.LayerNorm(2, bias=False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for _ in range(100):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (model(x.to(model.weight.dtype)) * sign).sum()
    loss.backward()
    optimizer.step()
print("weights", [round(w, 4) for w in model.weight.tolist()])

# %% invariant: with a constant gradient, Adam moves each weight by lr in each step
moved = (model.weight.float() - 1).abs().min().item()
assert abs(moved - 100 * 1e-4) < 1e-4, f"weights moved by {moved:g} instead of 0.01"
