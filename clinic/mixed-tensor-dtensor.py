r"""Got mixed torch.Tensor and DTensor: a method other than forward.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_fsdp
signature: RuntimeError: aten\.addmm\.default got mixed torch\.Tensor and DTensor

You see: `got mixed torch.Tensor and DTensor` from an ordinary operator, often
`aten.embedding`, `aten.mm` or `aten.addmm`, in `generate()` or another method of yours.

Cause: between steps, the parameters are DTensors, and each rank holds only a shard of
each. `fully_shard` gathers the shards in hooks around `forward`. Some calls bypass
these hooks: another method, `model.forward(x)`, or a loss that uses a weight directly.
Such a call finds the shards. Under tensor parallelism, the plain tensor is often a mask
or a buffer that was not distributed.

Cure: call `register_fsdp_forward_method(model, "score")`, which puts the same hooks
around the method `score`. If a mask or a buffer is the plain tensor, distribute it:
`distribute_tensor(t, mesh, [Replicate()])`.

Next time: find the layer by the operator in the message. Print `type` of its weight and
of its input: one of the two is the plain tensor.

Links: https://github.com/pytorch/pytorch/pull/125394 (hooks for methods such as generate; why they are needed)
https://github.com/pytorch/pytorch/issues/156535 (the message from an embedding under FSDP2)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x):
        return self.linear(x)

    def score(self, x):
        return self.linear(x).sigmoid()


# %% broken
model = fully_shard(Ranker())
print(model.score(torch.ones(2, 4)).shape)

# %% fixed
model = fully_shard(Ranker())
register_fsdp_forward_method(model, "score")
print(model.score(torch.ones(2, 4)).shape)

# %% signs
# aten\.(?!copy_\.|stack\.|_foreach_(?:norm|mul_\.Tensor))[\w.]+:? got mixed torch\.Tensor and DTensor
# maybe: got mixed torch\.Tensor and DTensor
