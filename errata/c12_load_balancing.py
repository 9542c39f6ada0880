"""Load balancing, which the title promises.

runs on: 4 ranks
outcome: runs
chapter: ch5_ddp

The article is named after load balancing, but its free part does not get to it, so here
it is. Rank 0 handles four samples per tick, rank 1 two, ranks 2 and 3 one (they really
sleep through their ticks). All must meet in the all_reduce, so a step takes as long as
its slowest rank. Equal shares make the fast ranks wait for most of the step. Shares in
proportion to speed need half the ticks. Unequal shares then need unequal weights: the
mean of four means is not the mean ({ref}`ch4_batch`), so each rank multiplies its mean
by its share of the batch times the world size, and DDP's average is right again. The
true gradient is the mean of 0 to 63; each cell also prints what it would be without
weights.

The same holds for *unequal samples* (long texts beside short ones): balance tokens, not
samples, as {ref}`ch9_data` does. Measure before you balance; a slow rank is often a
slow disk or a hot GPU.
"""

# %% given
import time

from torch import nn
from torch.nn.parallel import DistributedDataParallel

speeds = [4, 2, 1, 1]  # samples per tick
x = torch.arange(64.0)[:, None]
ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))


def step(shares):
    first = sum(shares[:rank])
    mine, ticks = x[first : first + shares[rank]], 0
    for _ in mine.split(speeds[rank]):
        time.sleep(0.001)  # the work of one tick
        ticks += 1
    weight = shares[rank] * world_size / sum(shares)
    (ddp(mine).mean() * weight).backward()
    slowest = torch.tensor(ticks)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    print(f"{len(mine)} samples: {ticks} ticks, then {slowest - ticks} of waiting")
    plain = mine.mean()
    dist.all_reduce(plain, dist.ReduceOp.AVG)
    print(f"gradient {ddp.module.weight.grad.item()}, without weights {plain.item()}")


# %% wrong
step([16, 16, 16, 16])

# %% right
step([64 * speed // sum(speeds) for speed in speeds])
