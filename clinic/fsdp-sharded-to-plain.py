r"""Got mixed torch.Tensor and DTensor: sharded file, plain model.

class: checkpoint
symptom: crash
runs on: 2 ranks
chapter: ch3_save_load
signature: loading state_dict for Linear:\n.*aten\.copy_\.default got mixed torch\.Tensor

You see: `got mixed torch.Tensor and DTensor` when a plain model loads what a sharded
one saved, although names and shapes are right. A script that has not imported
`torch.distributed.tensor` fails before that: it "must be imported to load DTensors".

Cause: `state_dict()` after `fully_shard` holds DTensors. They show the full shape but
hold only a shard, so rank 0's file has only rank 0's rows. The file is not a checkpoint
of the model, but a W-th of one.

Cure: gather before saving: `get_model_state_dict` with `full_state_dict=True`, called
on all ranks, saved by rank 0. For large models save with
`torch.distributed.checkpoint`, which writes shards and reads them into any other
layout.

Next time: look at `type(value)` of one entry of the file, and compare the file's size
with the number of parameters.

Links: https://github.com/JIA-Lab-research/Seg-Zero/issues/105 (sharded weights copied into a plain model)
"""

# %% given
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

sharded = fully_shard(nn.Linear(4, 4))
plain = nn.Linear(4, 4)

# %% broken
state = sharded.state_dict()
if rank == 0:
    torch.save(state, "last.pt")
    print(plain.load_state_dict(torch.load("last.pt")))

# %% fixed
whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
state = get_model_state_dict(sharded, options=whole)
if rank == 0:
    torch.save(state, "last.pt")
    print(plain.load_state_dict(torch.load("last.pt")))

# %% signs
# aten\.copy_\.default:? got mixed torch\.Tensor and DTensor
# with: Error\(s\) in loading state_dict for (?!FSDP)\w
# torch\.distributed\.tensor.{0,4} must be imported to load DTensors
# with: to load DTensors
