r"""A method bypasses the sharded model's forward, and all weights stay whole.

class: performance
symptom: slow
runs on: 2 ranks
chapter: ch12_fsdp
signature: \d of 8 parameters are whole after forward

You see: no error, and the loss is right. But after the forward pass, a GPU holds all
weights, as with DDP. If something calls the model itself later, it fails with `FSDP
state has already been lazily initialized`.

Cause: the unit that runs first becomes the root, and a root keeps its weights after
forward, since its backward should begin at once. The hooks that make the model the root
are around its `forward`. Another method goes past them to the layers, so each layer
becomes a root of its own, and no layer lets go of its weights.

Cure: `register_fsdp_forward_method(model, "loss")` puts the hooks around the method,
too. Or call what you need through `forward`.

Next time: after a forward, look at the types of the parameters: those of a layer should
be DTensors again. A model with parameters beside its layers, in no other unit, fails at
once: `got mixed torch.Tensor and DTensor`.

Links: https://github.com/facebookresearch/fairscale/issues/878 (each leaf is a root: no weights are let go)
https://github.com/pytorch/pytorch/issues/131965 (why a root keeps its weights)
https://github.com/pytorch/pytorch/pull/125394 (hooks for other methods)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))

    def forward(self, x):
        return self.layers(x)

    def loss(self, x):
        return self.layers(x).square().mean()


torch.manual_seed(0)
model = Net()
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)

# %% broken
loss = model.loss(torch.ones(2, 8))
print(f"loss {loss.item():.4f}")

# %% fixed
register_fsdp_forward_method(model, "loss")
loss = model.loss(torch.ones(2, 8))
print(f"loss {loss.item():.4f}")

# %% invariant: after forward, each rank has its parts again
whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
assert not whole, f"{len(whole)} of 8 parameters are whole after forward"
