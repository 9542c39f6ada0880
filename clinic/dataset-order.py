r"""Ranks list the dataset's samples in different orders.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: \d+ of 16 samples are on no rank
guard: start of epoch 0: Files\.files\[0\] is .*same order

You see: training works, a little worse than on one GPU. Nothing tells you that some
samples come twice in an epoch and others never.

Cause: `DistributedSampler` deals out positions, not samples. Rank 0 takes the positions
that rank 1 does not, so the shares are disjoint only if position 5 is the same sample
on both. `os.listdir` promises no order, a set of strings has a different one in each
process, and so has a list that each rank shuffles for itself.

Cure: sort the list, and leave shuffling to the sampler, which does it in the same way
on all ranks.

Next time: gather the names that each rank went through in an epoch, and count the
missing ones.

Links: https://github.com/pytorch/pytorch/issues/70103 (a lister of files without an order, under DistributedSampler)
https://github.com/QwenLM/Qwen3-VL/issues/1947 (a list shuffled by each rank before the sampler)
"""

# %% given
import random

from torch.utils.data import DataLoader, Dataset, DistributedSampler

listed = [f"{i:02}.png" for i in range(16)]
random.Random(rank).shuffle(listed)  # as another machine's listdir gives them


class Files(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return float(self.files[index][:2])


# %% broken
data = Files(listed)
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
mine = {int(i) for batch in loader for i in batch}
print(f"{len(mine)} samples")

# %% fixed
data = Files(sorted(listed))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
mine = {int(i) for batch in loader for i in batch}
print(f"{len(mine)} samples")

# %% invariant: each sample is on one rank
union = [None] * world_size
dist.all_gather_object(union, mine)
lost = 16 - len(set().union(*union))
assert not lost, f"{lost} of 16 samples are on no rank"

# %% guarded
from allranks.guard import Guard

data = Files(listed)
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
for batch in Guard(torch.nn.Linear(1, 1), skip="parameters").epoch(loader, 0):
    pass
