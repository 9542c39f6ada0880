"""Who tells a process its number?

runs on: 2 ranks
outcome: runs
chapter: ch4_ranks

"DDP hands `local_rank` to the script, and `nproc_per_node` is the number of GPUs." The
first cell hides `LOCAL_RANK` and builds a DDP, but the variable does not come back,
because it is the launcher that sets it, before the first line of the script. And
`nproc_per_node` is a number of processes: you choose one per GPU, and nothing checks
it.
"""

# %% given
import os

from torch import nn
from torch.nn.parallel import DistributedDataParallel

# %% claim
del os.environ["LOCAL_RANK"]
DistributedDataParallel(nn.Linear(2, 1))
print("LOCAL_RANK is set:", "LOCAL_RANK" in os.environ)

# %% fact
print("before any DDP: LOCAL_RANK is", os.environ["LOCAL_RANK"])
print(os.environ["LOCAL_WORLD_SIZE"], "processes on this machine")
