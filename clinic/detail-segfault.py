r"""Segmentation fault with TORCH_DISTRIBUTED_DEBUG=DETAIL on the CPU.

class: process group
symptom: crash
runs on: one process
chapter: ch5_ddp
signature: Fatal Python error: Segmentation fault

You see: in torch 2.13 and 2.15, the setting that is meant to find your bug makes
every DDP script on gloo die at `DistributedDataParallel(...)`, with exit code -11 and
no traceback. One process is enough.

Cause: under DETAIL a group is wrapped in one that checks every collective. DDP's logger
asks for the backend's name, gets "gloo", and so reads the wrapper's memory as if it
were gloo itself.

Cure: use INFO with DDP. If you need DETAIL's checks, replace the logger's call before
`DDP()`: `torch.distributed.Logger.set_construction_data_and_log = lambda *a, **k:
None`.

Next time: first try the same script without debugging switches. With
`PYTHONFAULTHANDLER=1`, a native crash prints the Python line that was running.

Links: https://github.com/pytorch/pytorch/issues/75011 (DETAIL fails in DDP's own tests)
"""

# %% broken: PYTHONFAULTHANDLER=1 TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun train.py
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
ddp = DistributedDataParallel(nn.Linear(2, 2))
print("output:", list(ddp(torch.ones(3, 2)).shape))
del ddp  # before the group: torch 2.13 may abort at exit otherwise
dist.destroy_process_group()

# %% fixed: PYTHONFAULTHANDLER=1 TORCH_DISTRIBUTED_DEBUG=INFO torchrun train.py
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
ddp = DistributedDataParallel(nn.Linear(2, 2))
print("output:", list(ddp(torch.ones(3, 2)).shape))
del ddp  # before the group: torch 2.13 may abort at exit otherwise
dist.destroy_process_group()

# %% signs
# maybe: distributed\.py", line \d+ in _ddp_init_helper
# with: Fatal Python error: Segmentation fault
# with: TORCH_DISTRIBUTED_DEBUG.*DETAIL
