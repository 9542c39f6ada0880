r"""TORCH_DISTRIBUTED_DEBUG=DETAIL kills DDP on the CPU.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: killed by SIGSEGV \(segmentation fault\) in `ddp = DistributedDataParallel

You see: in torch 2.13 without CUDA, the setting that is meant to find your bug makes
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

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def new_group_at(level):  # TORCH_DISTRIBUTED_DEBUG=level, set before the start
    dist.set_debug_level(level)
    dist.destroy_process_group()
    store = dist.FileStore("store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)


# %% broken
new_group_at(dist.DebugLevel.DETAIL)
ddp = DistributedDataParallel(nn.Linear(2, 2))
print("output:", list(ddp(torch.ones(3, 2)).shape))

# %% fixed
new_group_at(dist.DebugLevel.INFO)
ddp = DistributedDataParallel(nn.Linear(2, 2))
print("output:", list(ddp(torch.ones(3, 2)).shape))

# %% signs
# maybe: distributed\.py", line \d+ in _ddp_init_helper
# with: Fatal Python error: Segmentation fault
# with: TORCH_DISTRIBUTED_DEBUG.*DETAIL
