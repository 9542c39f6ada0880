r"""dcp.load fills a copy of the weights, and the model keeps its own.

class: checkpoint
symptom: silent
runs on: 2 ranks
chapter: ch12_fsdp
signature: 0 of 2 tensors were loaded
guard: the parameter weight \(and 1 more of 2\) is not what was saved

You see: no error. The loss begins where that of a new model begins.

Cause: `dcp.load` writes into the tensors that you hand it. If they are the model's own,
as those of `model.state_dict()` are, the weights come back by themselves. But a full
state dict, or one on another device, has copies: these are loaded, and thrown away. An
optimizer that has not stepped has no tensors to write into at all, so its state is lost
in the same way, though the weights are right.

Cure: get the state with `get_state_dict`, load, and hand it back with `set_state_dict`.
For the model alone, these are `get_model_state_dict` and `set_model_state_dict`, with
the same options.

Next time: compare a checksum of the weights with one from before the save, and look
whether `optimizer.state` is empty after loading.

Links: https://github.com/pytorch/pytorch/issues/126881 (what has no tensors yet is silently not loaded)
https://github.com/pytorch/pytorch/issues/125096 (whether load fills the dict that it is given)
"""

# %% given
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
trained, model = fully_shard(nn.Linear(4, 4)), fully_shard(nn.Linear(4, 4))
dcp.save({"model": get_model_state_dict(trained)}, checkpoint_id="step-10")
full = StateDictOptions(full_state_dict=True)

# %% broken
state = {"model": get_model_state_dict(model, options=full)}
dcp.load(state, checkpoint_id="step-10")
print("loaded:", *state["model"])

# %% fixed
state = {"model": get_model_state_dict(model, options=full)}
dcp.load(state, checkpoint_id="step-10")
set_model_state_dict(model, state["model"], options=full)
print("loaded:", *state["model"])

# %% invariant: the model has the weights that were trained
pairs = zip(model.parameters(), trained.parameters(), strict=True)
same = [torch.equal(a.full_tensor(), b.full_tensor()) for a, b in pairs]
assert all(same), f"{sum(same)} of {len(same)} tensors were loaded"

# %% guarded
from allranks.guard import Guard

mark = Guard(trained).mark()
state = {"model": get_model_state_dict(model, options=full)}
dcp.load(state, checkpoint_id="step-10")
Guard(model).resumed(mark)
