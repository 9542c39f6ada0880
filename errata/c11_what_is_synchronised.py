"""Are the parameters synchronised?

runs on: 2 ranks
outcome: runs
chapter: ch5_ddp

"DDP synchronises the parameters." If it did, it would repair rank 1's weight below,
which somebody changes after the wrapping. It broadcasts the weights once, when it is
built. From then on it averages *gradients*, and equal weights stay equal because equal
gradients move them. (So whatever else moves them must be equal, too: in
{ref}`ch10_precision`, weights are rounded at random, and all ranks have to draw alike.)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
nn.init.ones_(ddp.module.weight)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)


def step():
    ddp(torch.full((1, 1), rank + 1.0)).sum().backward()
    optimizer.step()
    weight, grad = ddp.module.weight, ddp.module.weight.grad
    print(f"weight {weight.item():.2f}, gradient {grad.item():.2f}")


# %% claim
with torch.no_grad():
    ddp.module.weight += rank
step()

# %% fact
step()
