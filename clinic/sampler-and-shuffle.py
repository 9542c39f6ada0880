r"""Sampler option is mutually exclusive with shuffle.

class: data
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: ValueError: sampler option is mutually exclusive with shuffle

You see: a `ValueError` on every rank, before the first batch.

Cause: `shuffle=True` asks the loader to make its own sampler, a random one. But it was
handed one already, so it refuses rather than drop one of the two. The line usually
survives from the script for one GPU.

Cure: shuffle in the sampler, which does so unless told otherwise, and leave the
loader's `shuffle` alone. If one script serves one process and many, write
`shuffle=(sampler is None)`.

Next time: read the arguments of the `DataLoader` in the traceback: sampler, batch
sampler and shuffle are three answers to one question, who orders the samples.

Links: https://github.com/ultralytics/yolov3/issues/231 (shuffle=True left in a script made distributed)
https://github.com/NVIDIA/tacotron2/issues/168 (the same; the sampler has its own shuffling)
"""

# %% given
from torch.utils.data import DataLoader, DistributedSampler

# %% broken
sampler = DistributedSampler(range(8))
loader = DataLoader(range(8), batch_size=2, sampler=sampler, shuffle=True)
print([batch.tolist() for batch in loader])

# %% fixed
sampler = DistributedSampler(range(8), shuffle=True)
loader = DataLoader(range(8), batch_size=2, sampler=sampler)
print([batch.tolist() for batch in loader])

# %% signs
# is mutually exclusive with shuffle
# batch_sampler (?:option )?is mutually exclusive with batch_size, shuffle, sampler
