r"""Expected to have finished reduction: a layer frozen after wrapping.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: RuntimeError: Expected to have finished reduction in the prior iteration

You see: training runs until the epoch in which a layer is frozen. One step later it
fails with a message about unused parameters, although all layers are used.

Cause: DDP made its list of parameters when it was built. The frozen ones are still on
that list, so DDP waits for gradients that they no longer get.

Cure: freeze before wrapping. To freeze during training, wrap the bare model again, on
all ranks at the same step.

Next time: look up the indices from the message in `list(model.parameters())`, and check
whether those parameters still have `requires_grad`.

Links: https://github.com/facebookresearch/ClassyVision/pull/398 (the message after freezing; DDP is built again)
https://github.com/open-mmlab/mmpretrain/pull/1676 (stages are frozen before DDP instead of after)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))

# %% broken
ddp = DistributedDataParallel(model)
model[0].requires_grad_(False)
for step in range(2):
    ddp(torch.ones(2, 1)).mean().backward()
    print("step", step)

# %% fixed
model[0].requires_grad_(False)
ddp = DistributedDataParallel(model)
for step in range(2):
    ddp(torch.ones(2, 1)).mean().backward()
    print("step", step)

# %% signs
# maybe: Expected to have finished reduction in the prior iteration before starting a new one(?!.*training graph has changed)
# with: requires_grad_?\(?( = )?False
