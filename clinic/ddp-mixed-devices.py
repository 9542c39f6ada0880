r"""Must be on the same type of devices: part of the model was not moved.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: must be on the same type of devices

You see: the constructor of DDP fails and lists two kinds of devices.

Cause: some parameters are on another type of device than the rest. They may belong to a
loss whose own weights are on the CPU, to a layer that was added after `.to(device)`, or
to one that a checkpoint did not have and that is still on `meta`, without memory.

Cure: move the whole model right before wrapping. What is on `meta` has to be
materialised first, with `to_empty` and a new initialisation or a checkpoint.

Next time: print `{p.device for p in model.parameters()}`, and then the names of the
parameters on the odd device.

Links: https://github.com/modelscope/ms-swift/issues/634 ({'cuda', 'meta'}: a model of 72B, cut for several GPUs)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2, device="meta"))

# %% broken
ddp = DistributedDataParallel(model)
print("on", {f"{p.device}" for p in ddp.parameters()})

# %% fixed
model[1].to_empty(device=device).reset_parameters()
ddp = DistributedDataParallel(model)
print("on", {f"{p.device}" for p in ddp.parameters()})

# %% signs
# input module must be on the same type of devices
