"""Can the wrappers train asynchronously?

runs on: 2 ranks
outcome: hangs
chapter: ch5_ddp

"Updates can be synchronous or asynchronous", as if DataParallel and DDP had a switch.
Both are synchronous. In an asynchronous method, rank 1 could wait until rank 0 has
finished its step; with DDP, rank 0's `backward()` waits for rank 1, and nobody ever
moves. Other algorithms let ranks run ahead: taking steps on local gradients and
averaging the weights now and then is one, a parameter server another
({ref}`ch5_async`).
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
message = torch.zeros(1)


def step_first_on_rank_0():
    if rank == 1:
        dist.recv(message, src=0)
    ddp(torch.ones(1, 1)).sum().backward()
    if rank == 0:
        dist.send(message, dst=1)


# %% claim
step_first_on_rank_0()

# %% fact
with ddp.no_sync():  # local gradients: nobody waits
    step_first_on_rank_0()
dist.all_reduce(ddp.module.weight.data, dist.ReduceOp.AVG)  # now and then
print("done")
