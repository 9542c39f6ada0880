r"""Missing key(s) that differ only by `_fsdp_wrapped_module.`.

class: checkpoint
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: Missing key\(s\) in state_dict.*\n.*"_fsdp_wrapped_module\.

You see: `Missing key(s)` and `Unexpected key(s)` that differ only by
`_fsdp_wrapped_module.`, once for each wrapped layer, even in the middle of a name. In
fairscale and in older releases it is `_fpw_module.`; `_checkpoint_wrapped_module.`
comes from activation checkpointing.

Cause: the older FSDP puts a module around each unit. Its own `state_dict()` takes the
wrappers' names out; a dictionary of `named_parameters()`, as here, or the state dict of
a part of the model, taken below its wrapper, keeps them.

Cure: save with FSDP's own state dict (`get_model_state_dict` with
`full_state_dict=True`), on all ranks. Repair an old file with
`{key.replace("_fsdp_wrapped_module.", ""): value for key, value in state.items()}`, if
its values are whole and not flat (`_flat_param`).

Next time: print the first key of the file. The successor, `fully_shard`, adds no wrapper.

Links: https://github.com/pytorch/pytorch/issues/117446 (what the names look like in the error)
https://github.com/facebookresearch/dinov2/issues/544 (a checkpoint of flat parameters)
https://github.com/facebookresearch/fairseq/issues/3464 (fairscale: _fpw_module)
"""

# %% given
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

plain = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
cpu = torch.device("cpu")
model = FSDP(plain, device_id=cpu, use_orig_params=True)

# %% broken
state = {name: value.detach() for name, value in model.named_parameters()}
nn.Sequential(nn.Linear(2, 2), nn.ReLU()).load_state_dict(state)

# %% fixed
whole = StateDictOptions(full_state_dict=True)
state = get_model_state_dict(model, options=whole)
print(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).load_state_dict(state))

# %% signs
# state_dict: "?(?:[\w.]+\.)?(?:_fsdp_wrapped_module|_fpw_module|_checkpoint_wrapped_module)\.
# maybe: (?:"|KeyError: ')(?:[\w.]+\.)?(?:_fsdp_wrapped_module|_fpw_module)\.[\w.]+["'\\]
# maybe: _fsdp_wrapped_module\.(?:[\w.]+\.)?_flat_param
# keys: _fsdp_wrapped_module\.
# keys: _fpw_module\.
# keys: _checkpoint_wrapped_module\.
