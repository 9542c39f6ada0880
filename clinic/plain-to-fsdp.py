r"""Got mixed torch.Tensor and DTensor: plain file, sharded model.

class: checkpoint
symptom: crash
runs on: 2 ranks
chapter: ch3_save_load
signature: loading state_dict for FSDPLinear:\n.*aten\.copy_\.default got mixed torch\.Tensor

You see: `Error(s) in loading state_dict for FSDP…` and `got mixed torch.Tensor and
DTensor`, on every rank, for each parameter.

Cause: `fully_shard` made each parameter a DTensor, of which this rank holds a part.
`load_state_dict` copies value by value, and torch will not guess which rows of a plain
tensor are meant.

Cure: `set_model_state_dict` with `full_state_dict=True` cuts the full tensors into
shards. With `broadcast_from_rank0=True` only rank 0 needs the file. Or load before
`fully_shard`, if every rank can hold the model.

Next time: the class in the message, `FSDPLinear`, says that the model is sharded; then
print `type(value)` of one entry of the file.

Links: https://github.com/pytorch/pytorch/issues/136336 (pretrained weights into an FSDP2 model)
https://github.com/nvidia-cosmos/cosmos-transfer2.5/issues/206 (works on one GPU, fails when sharded)
"""

# %% given
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

pretrained = {"weight": torch.eye(4), "bias": torch.arange(4.0)}
model = fully_shard(nn.Linear(4, 4))

# %% broken
model.load_state_dict(pretrained)
print("bias of this rank:", model.bias.to_local().tolist())

# %% fixed
whole = StateDictOptions(full_state_dict=True)
set_model_state_dict(model, pretrained, options=whole)
print("bias of this rank:", model.bias.to_local().tolist())

# %% signs
# aten\.copy_\.default:? got mixed torch\.Tensor and DTensor
# with: Error\(s\) in loading state_dict for FSDP\w
