"""A test score with a sample that counts twice.

runs on: 2 ranks
outcome: runs
chapter: ch5_ddp

`DistributedSampler` repeats samples until all ranks have equally many: 102 draws of 101
samples. The model below gets sample 0 wrong and all others right, and sample 0 is the
one that counts twice. So take every W-th sample, and add up counts. The shares may be
unequal if no batch calls a collective: evaluate `ddp.module`, since DDP's own forward
may send buffers.
"""

# %% given
from torch.utils.data import DistributedSampler


def error_rate(mine):
    counts = torch.tensor([mine.count(0), len(mine)])  # wrong, all
    dist.all_reduce(counts)
    wrong, num = counts.tolist()
    return f"{wrong} / {num} = {wrong / num:.4f}"


# %% wrong
mine = list(DistributedSampler(range(101), shuffle=False))
print(error_rate(mine))

# %% right
mine = list(range(101))[rank::world_size]
print(error_rate(mine))
