r"""Parameter group doesn't match the size: the parameter list changed.

class: checkpoint
symptom: crash
runs on: one process
chapter: ch3_save_load
signature: ValueError: loaded state dict contains a parameter group that doesn't match the size

You see: the model's weights load, and then the optimizer refuses its state:
`contains a parameter group that doesn't match the size of optimizer's group`.

Cause: an optimizer's state has no names. It is numbered in the order in which the
parameters were handed over, so only their count can be compared. A layer has been
frozen, added or left out since the save. If the count fits but the order does not,
momentum silently goes to the wrong tensors.

Cure: hand over the same list as at the save, and freeze with `requires_grad_(False)`
rather than by leaving parameters out. Or load only the model, and start with a fresh
optimizer.

Next time: compare `len(group["params"])` of both sides. An optimizer that is built from
`named_parameters()` (since torch 2.6) writes the names into the file too.
`torch.distributed.checkpoint` (`get_state_dict`) saves the state under names.

Links: https://github.com/mli0603/stereo-transformer/issues/58 (layers were removed since the checkpoint)
https://github.com/CompVis/latent-diffusion/issues/231 (the message when a training is resumed)
"""

# %% given
from torch import nn

model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
saved = torch.optim.AdamW(model.parameters()).state_dict()

# %% broken
model[0].requires_grad_(False)
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained)
optimizer.load_state_dict(saved)
print(len(optimizer.param_groups[0]["params"]), "parameters")

# %% fixed
model[0].requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters())  # the frozen ones too
optimizer.load_state_dict(saved)
print(len(optimizer.param_groups[0]["params"]), "parameters")

# %% signs
# parameter group that doesn.?t match the size of optimizer
# loaded state dict has a different number of parameter groups
