r"""`clip_grad_norm_` got mixed torch.Tensor and DTensor.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: RuntimeError: aten\._foreach_norm\.Scalar got mixed torch\.Tensor and DTensor

You see: `aten._foreach_norm.Scalar got mixed torch.Tensor and DTensor` from
`clip_grad_norm_`. Without clipping, the optimizer fails in the same way on a GPU, where
it updates all parameters in one `foreach` call.

Cause: `clip_grad_norm_` computes the norms of all gradients in one call, and this call
can't mix both kinds of tensors. Some parameters are DTensors, because you sharded their
block. Others are plain tensors, because they are outside of every unit: often a norm
layer, an embedding or the head.

Cure: call `fully_shard` on the root, too. The root takes all parameters that remain, so
that all of them are DTensors of one mesh. Under tensor parallelism, distribute the norm
layers as `Replicate()`, a whole copy on each rank.

Next time: list the parameters that are not DTensors. FSDP doesn't average their
gradients over the ranks either, which is worse than this error.

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
