r"""Your training graph has changed, in spite of static_graph=True.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: your training graph has changed in this iteration

You see: training starts, and fails when a part of the model is switched off or on: a
second stage, a schedule of losses, layer drop.

Cause: `static_graph=True` promises that each step uses the same parameters, the same
number of times and in the same way. DDP learns the pattern in the first step and relies
on it.

Cure: leave `static_graph` at `False`. If layers come and go, you then need
`find_unused_parameters=True`. If `static_graph` is there for gradient checkpointing,
use `use_reentrant=False` instead.

Next time: without `static_graph`, note which parameters have `grad is None` after
`backward`. The promise holds only if these are the same in each step.

Links: https://github.com/deepinsight/insightface/issues/2288 (training graph has changed under static_graph)
https://github.com/pytorch/pytorch/issues/97030 (a static model with an unused output fails as well)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x, stage):
        return self.head(self.body(x)) if stage == 0 else self.body(x)


# %% broken
ddp = DistributedDataParallel(Net(), static_graph=True)
for stage in (0, 1, 1):
    ddp(torch.ones(2, 1), stage).mean().backward()
    print("stage", stage)

# %% fixed
ddp = DistributedDataParallel(Net(), find_unused_parameters=True)
for stage in (0, 1, 1):
    ddp(torch.ones(2, 1), stage).mean().backward()
    print("stage", stage)

# %% signs
# raining graph has changed in this iteration
# not compatible with static_graph set to True
