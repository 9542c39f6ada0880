r"""Only rank 0 asks an FSDP model for its full state dict.

class: checkpoint
symptom: hang
runs on: 2 ranks
chapter: ch3_save_load
signature: rank 0 waits in `state = get_model_state_dict

You see: no message. The job hangs at the first checkpoint, and ends after the group's
timeout in an all-gather.

Cause: no rank has the whole model, so a collective gathers each full tensor from all
ranks. An `if rank == 0`, which is right for DDP, leaves rank 0 alone in it.

Cure: all ranks gather, rank 0 writes. With `cpu_offload=True` only rank 0 keeps the
result.

Next time: dump the stack of each rank (`py-spy dump`): one is inside
`get_model_state_dict` or `full_tensor`, the others in the next step or its collective.

Links: https://github.com/pytorch/pytorch/issues/73383 (a full state dict on rank 0 needs all ranks' collectives)
"""

# %% given
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

model = fully_shard(nn.Linear(4, 4))
whole = StateDictOptions(full_state_dict=True, cpu_offload=True)

# %% broken
if rank == 0:
    state = get_model_state_dict(model, options=whole)
    torch.save(state, "last.pt")
print("at step 2")

# %% fixed
state = get_model_state_dict(model, options=whole)
if rank == 0:
    torch.save(state, "last.pt")
print("at step 2, with", len(state), "tensors")
