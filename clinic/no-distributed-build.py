r"""torch.distributed has no attribute init_process_group.

class: launch
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: `module 'torch.distributed' has no attribute 'init_process_group'` (or
`ReduceOp`, `is_initialized`, `_all_gather_base`), though the name is spelt right.

Cause: a build can leave out all of `torch.distributed`; the module is then empty. Older
wheels for macOS and Windows were such builds, and so are some for Jetson and other ARM
boards. A file of your own that is called torch.py or distributed.py has the same effect.

Cure: install a torch that has it: any current wheel from pytorch.org, or on a Jetson one
that was built with `USE_DISTRIBUTED=1`. For one GPU, leave out what is distributed behind
`if dist.is_available() and dist.is_initialized()`.

Next time: `torch.distributed.is_available()` is False in such a build, and
`torch.distributed.__file__` tells whose file was imported.

Links: https://github.com/pytorch/examples/issues/467 (an old wheel for macOS)
https://github.com/pytorch/pytorch/issues/31710 (a wheel for Jetson)
https://github.com/facebookresearch/detr/issues/43 (torch 1.5 on Windows)
"""

# %% quoted
# AttributeError: module 'torch.distributed' has no attribute 'init_process_group'

# %% broken
import torch.distributed as dist

dist.init_process_group("gloo")

# %% fixed
import torch.distributed as dist

if not dist.is_available():
    raise SystemExit("this torch has no torch.distributed: install another build")
dist.init_process_group("gloo")

# %% signs
# module '?torch\.distributed'? has no attribute '?(?:init_process_group|ReduceOp|is_initialized|get_rank|get_world_size|all_reduce|reduce_op|is_nccl_available|ProcessGroup|_all_gather_base|barrier|new_group)
# No module named 'torch\._C\._distributed_c10d'
# Torch package doesn't have distributed support|[Rr]equires distributed package to be available
# has no attribute '?_c10d_init
