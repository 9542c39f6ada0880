r"""FSDP expects uniform original parameter dtype.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_fsdp
signature: AssertionError: FSDP expects uniform original parameter dtype but got \{torch\.\w+, torch\.\w+\}

You see: `FSDP expects uniform original parameter dtype`, at the first forward. The
older FSDP says `Must flatten tensors with uniform dtype`, as soon as you wrap the
model.

Cause: FSDP sends the gradients of a unit in one buffer, and a buffer has one dtype. If
a base model trains in bfloat16, its adapters or norm layers in float32 don't fit into
this buffer. (With FSDP2, a frozen base may have a different dtype, because it has no
gradients.)

Cure: use one dtype for all parameters that train. Choose float32, and let
`MixedPrecisionPolicy` set the dtype of the computation. Or give each dtype a unit of
its own.

Next time: print `Counter(p.dtype for p in model.parameters())` before sharding. The
parameters with the rarer dtype are usually adapters and newly added heads.

Links: https://github.com/huggingface/trl/issues/1723 (bfloat16 and float32 in one FSDP unit)
https://github.com/axolotl-ai-cloud/axolotl/issues/1494 (the same with quantized LoRA)
https://github.com/huggingface/peft/issues/484 (the older wording, FlatParameter)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

base = nn.Linear(4, 4).bfloat16()
adapter = nn.Linear(4, 4)


class Tuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.adapter = base, adapter

    def forward(self, x):
        return self.base(x.bfloat16()).float() + self.adapter(x)


# %% broken
model = Tuned()
fully_shard(model)
print(model(torch.ones(2, 4)).dtype)

# %% fixed
model = Tuned()
fully_shard(model.adapter)
fully_shard(model)
print(model(torch.ones(2, 4)).dtype)

# %% signs
# FSDP expects uniform original parameter dtype
# Must flatten tensors with (?:uniform|the same) dtype
# FlatParameter` requires uniform dtype
