r"""Expected to have finished reduction: a layer takes no part in the loss.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: RuntimeError: Expected to have finished reduction in the prior iteration

You see: the first step works, so a test run of a single step passes. The second step
fails in `forward`, far from the layer that is to blame.

Cause: DDP waits for the gradients of all its parameters before it finishes averaging. A
layer that is built but not used, or whose output is not part of the loss, never gets a
gradient. So the averaging of this step is still unfinished when the next `forward`
begins.

Cure: remove the layer, or freeze it before wrapping. If it is used only in some steps,
`find_unused_parameters=True` makes DDP search the graph in every step, which costs
time.

Next time: the message lists the indices of the parameters, and with
`TORCH_DISTRIBUTED_DEBUG=INFO` also their names. On one GPU, look for parameters with
`grad is None` after `backward`.

Links: https://github.com/pytorch/pytorch/issues/43259 (causes of this message, with workarounds)
https://github.com/megvii-research/AnchorDETR/issues/6 (solved by deleting unused layers)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.spare = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x):
        return self.body(x)


# %% broken
ddp = DistributedDataParallel(Net())
for step in range(2):
    ddp(torch.ones(2, 1)).mean().backward()
    print("step", step)

# %% fixed
model = Net()
model.spare.requires_grad_(False)
ddp = DistributedDataParallel(model)
for step in range(2):
    ddp(torch.ones(2, 1)).mean().backward()
    print("step", step)

# %% signs
# xpected to have finished reduction in the prior iteration(?!.*training graph has changed)
# with: parameters that were not used in producing (a )?loss
# arameter indices which did not receive grad
# arameters which did not receive grad for rank
# has parameters that were not used in producing the loss
# ou can enable unused parameter detection|outputs participate in calculating loss
