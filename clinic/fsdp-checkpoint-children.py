r"""Activation checkpointing saves little, because it wraps the parts of each layer.

class: performance
symptom: slow
runs on: 2 ranks
chapter: ch12_fsdp
signature: a step keeps \d+ KiB of activations instead of

You see: with activation checkpointing, a step takes a third longer, as it should. But
the peak of memory is far higher than with a wrapper around each layer.

Cause: a checkpoint keeps its input, and throws away what is computed inside. A wrapper
around the layer keeps one tensor per layer. Wrappers around the layer's children (norm,
attention, linear layers) keep the input of each child, so almost everything stays, and
all of it is computed twice. A policy that looks at a module's *parent* does this.

Cure: wrap the layer that repeats, and then shard the wrapped layer.

Next time: print the model, or count the wrappers: there should be one per layer.
{ref}`ch11_memory` counts what a checkpoint keeps.

Links: https://github.com/huggingface/accelerate/pull/4172 (29 GB of a peak of 40.8 GB were such tensors)
https://github.com/huggingface/accelerate/issues/3897 (much more memory with FSDP2 than with FSDP1)
"""

# %% given
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(64), nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


model = nn.Sequential(*(Layer() for _ in range(4)))
x, kept = torch.ones(32, 64), {}


def keep(tensor):
    kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return tensor


hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)

# %% broken
for layer in model:
    for name, child in list(layer.named_children()):
        setattr(layer, name, checkpoint_wrapper(child))
    fully_shard(layer)
fully_shard(model)
with hooks:
    loss = model(x).mean()
loss.backward()
print("checkpoints:", str(model).count("CheckpointWrapper("))

# %% fixed
for i, layer in enumerate(model):
    model[i] = fully_shard(checkpoint_wrapper(layer))
fully_shard(model)
with hooks:
    loss = model(x).mean()
loss.backward()
print("checkpoints:", str(model).count("CheckpointWrapper("))

# %% invariant: a step keeps the input of each layer, and nothing else
KiB, inputs = sum(kept.values()) // 1024, 4 * x.nbytes // 1024
assert KiB <= inputs, f"a step keeps {KiB} KiB of activations instead of {inputs}"
