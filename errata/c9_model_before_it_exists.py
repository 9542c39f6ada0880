"""A model that wraps itself before it exists.

runs on: 2 ranks
outcome: raises
chapter: ch5_ddp

The worker contains `model = DDP(model)`, and nothing before it makes a model. The
assignment makes the name local to the function, so even a global of that name would not
help. Make the model in the worker, then wrap it under another name: you need both.
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel


# %% wrong
def work():
    model = DistributedDataParallel(model)
    return model


work()


# %% right
def work():
    net = nn.Linear(2, 1)
    ddp = DistributedDataParallel(net)
    return net, ddp


net, ddp = work()
print(ddp.module is net)
