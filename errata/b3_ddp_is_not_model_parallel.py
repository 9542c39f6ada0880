"""Does DDP split a model?

runs on: 2 ranks
outcome: runs
chapter: ch6_model_parallel

"DDP implements model parallelism." Count what each rank holds: with DDP, it is the
whole model, because DDP splits the *data*. To split the model, you write the two halves
and what travels between them. Both can be combined, on a mesh of ranks.
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def count(module):
    return sum(p.numel() for p in module.parameters())


halves = nn.Linear(4, 10), nn.Linear(10, 1)

# %% claim
ddp = DistributedDataParallel(nn.Sequential(*halves))
print(count(ddp), "parameters on this rank")

# %% fact
mine = halves[rank]
print(count(mine), "parameters on this rank")
