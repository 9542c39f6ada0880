r"""Each rank takes a different branch of the model.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: did not receive grad for rank 0: 2 3[\s\S]*did not receive grad for rank 1: 0 1

You see: the message about unused parameters, with different indices on each rank. It
comes at a step that differs from run to run, because it depends on the data.

Cause: the forward pass chooses layers by what is in the batch: a task, a modality, a
missing label. DDP expects each rank to deliver gradients of all parameters.

Cure: `find_unused_parameters=True`: absent gradients count as zero in the average. Or
let all layers take part, with a factor of zero. Mind the scale: a layer that only one
of W ranks used gets its gradient divided by W.

Next time: compare the indices in the messages of all ranks. Different indices mean a
branch; the same ones mean an unused layer.

Links: https://github.com/open-mmlab/mmdetection3d/issues/488 (a two-stage detector that needs find_unused_parameters)
https://github.com/pytorch/pytorch/issues/55582 (each batch trains some of the output layers)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.even, self.odd = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x):
        return self.even(x) if x[0].item() % 2 == 0 else self.odd(x)


def train(ddp, x):
    for step in range(2):
        try:
            ddp(x).mean().backward()
            print("step", step)
        except RuntimeError as error:
            print(*(part for part in f"{error}".splitlines() if "indices" in part))
            raise


x = torch.tensor([[float(rank)]])

# %% broken
ddp = DistributedDataParallel(Experts())
train(ddp, x)

# %% fixed
ddp = DistributedDataParallel(Experts(), find_unused_parameters=True)
train(ddp, x)

# %% signs
# maybe: Expected to have finished reduction in the prior iteration before starting a new one(?!.*training graph has changed)
