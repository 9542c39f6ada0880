"""Can the wrappers train asynchronously?

runs on: 2 ranks
outcome: hangs
chapter: ch5_ddp

"Updates can be synchronous or asynchronous", as if DataParallel and DDP had a switch.
Both are synchronous. In an asynchronous method, rank 1 could wait until rank 0 has
finished its step; with DDP, rank 0's `backward()` waits for rank 1, and nobody ever
moves. Other algorithms let ranks run ahead: taking steps on local gradients and
averaging the weights now and then is one ({ref}`ch8_ddp_by_hand` trains so), a
parameter server another ({ref}`ch5_async`).
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
sgd = torch.optim.SGD(ddp.parameters(), lr=0.1)
message = torch.zeros(1)


def step_first_on_rank_0():
    if rank == 1:
        dist.recv(message, src=0)
    ddp(torch.full((1, 1), float(rank))).sum().backward()
    sgd.step()
    if rank == 0:
        dist.send(message, dst=1)


# %% claim
step_first_on_rank_0()

# %% fact
weight = ddp.module.weight.data
before = weight.clone()
with ddp.no_sync():  # local gradients: nobody waits
    step_first_on_rank_0()
print("moved by", round((weight - before).item(), 4))
dist.all_reduce(weight, dist.ReduceOp.AVG)  # now and then
print("after averaging", round((weight - before).item(), 4))
