"""A misspelt class.

runs on: one process
outcome: raises
chapter: ch5_ddp

Two letters of the class's name are swapped in the import of DDP. Python finds out at
once, so this one costs a minute and no results. It is here because the same line stands
in many copies: code that was never run spreads as fast as code that was.
"""

# %% wrong
from torch.nn.parallel import DistributedDataParalell

# %% right
from torch.nn.parallel import DistributedDataParallel

print(DistributedDataParallel.__name__)
