r"""The model is wrapped in DDP twice.

class: DDP
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: keys of the checkpoint begin with module\.
guard: wrapped twice

You see: training works, with twice the communication. The checkpoint does not load into
the bare model: its keys begin with `module.`, or with `module.module.` if DDP itself
was saved.

Cause: a library has wrapped the model already (a trainer, `prepare`), and the script
does it again. Each of the two has its own hooks and reduces all gradients.

Cure: wrap once, at one place. To save, take the bare model that you kept.

Next time: `print(model)` shows the wrappers from the outside in. A checkpoint's first
key shows how many there were.

Links: https://github.com/facebookresearch/fairchem/pull/76 (module.module. keys are cut when loading)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

model = nn.Linear(4, 2)
names = list(model.state_dict())

# %% broken
ddp = DistributedDataParallel(model)
ddp = DistributedDataParallel(ddp)
checkpoint = ddp.module.state_dict()
print("keys", *checkpoint)

# %% fixed
ddp = DistributedDataParallel(model)
checkpoint = ddp.module.state_dict()
print("keys", *checkpoint)

# %% invariant: under one shell, the checkpoint has the keys of the bare model
found = list(checkpoint)
assert found == names, f"{len(found)} keys of the checkpoint begin with module."

# %% guarded
from allranks.guard import Guard

ddp = DistributedDataParallel(model)
ddp = DistributedDataParallel(ddp)
watch = Guard(ddp)

# %% signs
# "module\.module\.
# with: Unexpected key\(s\) in state_dict
# with: Error\(s\) in loading state_dict
# 'module\.module\.
