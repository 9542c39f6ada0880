r"""FSDP expects uniform original parameter dtype.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_fsdp
signature: AssertionError: FSDP expects uniform original parameter dtype but got \{torch\.\w+, torch\.\w+\}

You see: `FSDP expects uniform original parameter dtype`, at the first forward. The
older FSDP says `Must flatten tensors with uniform dtype`, already when wrapping.

Cause: the gradients of a unit are sent in one buffer, which has one dtype. If a base
model trains in bfloat16, its adapters or norms in float32 do not fit into the buffer.
(With FSDP2 a frozen base may have another dtype, because it has no gradients.)

Cure: use one dtype for all parameters that train (float32, with `MixedPrecisionPolicy`
for the computation), or give each dtype a unit of its own.

Next time: print `Counter(p.dtype for p in model.parameters())` before sharding. The odd
ones are usually adapters and freshly added heads.

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
