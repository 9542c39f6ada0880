r"""`clip_grad_norm_` got mixed torch.Tensor and DTensor.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: RuntimeError: aten\._foreach_norm\.Scalar got mixed torch\.Tensor and DTensor

You see: `aten._foreach_norm.Scalar got mixed torch.Tensor and DTensor` from
`clip_grad_norm_`; without clipping, a similar line from the optimizer, whose steps are
`foreach` on GPUs unless told otherwise. On the CPU it would train without any message.

Cause: the norm of all gradients is computed in one call for the whole list. Some
parameters are DTensors, because their block was sharded, and some are not: a norm, an
embedding, a head outside of every unit.

Cure: call `fully_shard` on the root too: it takes what remains, so that all parameters
are DTensors of one mesh. Under tensor parallelism, distribute the norm layers as
`Replicate()`.

Next time: list the parameters that are not DTensors. They are also not averaged over
the ranks, which is worse than the message.

Links: https://github.com/meta-pytorch/torchtune/issues/2420 (clipping fails with tensor parallelism)
https://github.com/huggingface/accelerate/pull/4219 (plain tensors and DTensors clipped apart)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
x = torch.arange(8.0).reshape(2, 4)

# %% broken
fully_shard(model[0])
model(x).square().sum().backward()
norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
print("norm of the gradient:", round(norm.full_tensor().item(), 2))

# %% fixed
fully_shard(model[0])
fully_shard(model)
model(x).square().sum().backward()
norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
print("norm of the gradient:", round(norm.full_tensor().item(), 2))

# %% signs
# aten\._foreach_(?:norm\.|mul_\.Tensor)[\w.]*:? got mixed torch\.Tensor and DTensor
# with: clip_grad_norm_
# aten\.stack\.default:? got mixed torch\.Tensor and DTensor
