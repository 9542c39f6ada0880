r"""FSDP needs as much memory as DDP in forward, because the model is one unit.

class: performance
symptom: slow
runs on: 2 ranks
chapter: ch12_fsdp
signature: \d+ KiB of weights are whole at a time

You see: the model still does not fit, or the peak of memory hardly falls. Between
steps, each rank has only its part. In the profile, there is one long all-gather before
forward, during which nothing is computed.

Cause: `fully_shard(model)` makes one unit of the model. A unit is gathered as a whole
when its forward begins. So all weights are there at a time, and so are all gradients in
backward. And nothing can be computed while they are on their way.

Cure: shard each layer that repeats, and then the model, which takes what is left, such
as embeddings and the head. In FSDP1, the same is `auto_wrap_policy`.

Next time: count the units: `sum(isinstance(m, FSDPModule) for m in model.modules())` is
the number of layers, plus one. {ref}`ch12_fsdp` shows what each unit holds and when.

Links: https://github.com/facebookresearch/fairscale/issues/971 (one unit or one per layer: memory and speed)
https://github.com/allenai/allennlp/issues/5614 (wrapping only the whole)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
whole = []


def look(*_):
    there = (p for p in model.parameters() if not isinstance(p, DTensor))
    whole.append(sum(p.nbytes for p in there) // 1024)


for layer in model:
    layer.register_forward_hook(look)

# %% broken
fully_shard(model)
model(torch.ones(2, 64)).mean().backward()
print("KiB of weights in all:", 8 * 65 * 64 * 4 // 1024)

# %% fixed
for layer in model:
    fully_shard(layer)
fully_shard(model)
model(torch.ones(2, 64)).mean().backward()
print("KiB of weights in all:", 8 * 65 * 64 * 4 // 1024)

# %% invariant: two layers are whole at a time, at most
KiB = max(whole)
assert KiB <= 2 * 65 * 64 * 4 // 1024, f"{KiB} KiB of weights are whole at a time"
