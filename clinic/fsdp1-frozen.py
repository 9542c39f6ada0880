r"""Must flatten tensors with uniform requires_grad (the older FSDP).

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_2_moving
signature: ValueError: Must flatten tensors with uniform `requires_grad`

You see: "Must flatten tensors with uniform `requires_grad` when
`use_orig_params=False`" while `FullyShardedDataParallel` wraps a model with frozen
layers or LoRA adapters.

Cause: the older FSDP joins all parameters of a wrapped module into one flat tensor. A
tensor needs a gradient as a whole or not at all, so frozen parameters and parameters
that train can't share it.

Cure: pass `use_orig_params=True`, which keeps the parameters, and their
`requires_grad`, apart. The gradient of the whole flat tensor still takes memory until
it is reduced, so wrap frozen layers separately where you can. Or use the successor,
`fully_shard`. It shards each parameter on its own, so you can mix both kinds. In the
fixed run below, rank 0's part of the flat tensor is all frozen, so only rank 1 has
gradients.

Next time: print `{p.requires_grad for p in module.parameters()}` for each module that
the wrapping policy chooses. A module with both values is the culprit.

Links: https://github.com/huggingface/peft/issues/1702 (LoRA with FSDP, torch 2.2)
https://github.com/pytorch/pytorch/issues/104690 (torch 2.0 says: FlatParameter requires uniform requires_grad)
https://github.com/pytorch/pytorch/issues/91167 (what use_orig_params does with frozen parameters)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
model[0].requires_grad_(False)
cpu = torch.device("cpu")

# %% broken
model = FullyShardedDataParallel(model, device_id=cpu)
model(torch.ones(2, 4)).sum().backward()
held = [p.grad.numel() for p in model.parameters() if p.grad is not None]
print("numbers with a gradient:", sum(held))

# %% fixed
model = FullyShardedDataParallel(model, device_id=cpu, use_orig_params=True)
model(torch.ones(2, 4)).sum().backward()
held = [p.grad.numel() for p in model.parameters() if p.grad is not None]
print("numbers with a gradient:", sum(held))

# %% signs
# Must flatten tensors with uniform `?requires_grad
# `?FlatParameter`? requires uniform `?requires_grad
