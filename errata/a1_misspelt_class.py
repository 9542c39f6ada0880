"""A misspelt class.

runs on: one process
outcome: raises
chapter: ch5_ddp

The last letter of the class's name is wrong in the import of DDP. Python finds out at
once, so this one costs a minute and no results. It is here because it shows that the
listing was never run as it stands.
"""

# %% wrong
from torch.nn.parallel import DistributedDataParalled

# %% right
from torch.nn.parallel import DistributedDataParallel

print(DistributedDataParallel.__name__)
