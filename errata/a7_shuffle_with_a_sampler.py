"""`shuffle=True` beside a sampler.

runs on: 2 ranks
outcome: raises
chapter: ch5_ddp

Here the article is right: the loader's `shuffle` must stay off. It is the sampler that
shuffles, and it does so by default; if you want a fixed order, turn it off there.
"""

# %% given
from torch.utils.data import DataLoader, DistributedSampler

sampler = DistributedSampler(range(8), shuffle=True)  # its own default

# %% wrong
loader = DataLoader(range(8), batch_size=2, sampler=sampler, shuffle=True)

# %% right
loader = DataLoader(range(8), batch_size=2, sampler=sampler)
print([batch.tolist() for batch in loader])
