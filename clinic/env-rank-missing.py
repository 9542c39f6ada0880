r"""Environment variable RANK expected, but not set.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: environment variable RANK expected, but not set

You see: a `ValueError` in `init_process_group` when you start the script with `python`,
from a notebook or with an IDE's run button.

Cause: without further arguments the group is formed with `env://`, for which every
process reads `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. torchrun sets all
of them, but python sets none. They are read one after the other, so if you set `RANK`,
the next one is missing.

Cure: start it with `torchrun --nproc-per-node N train.py`. To debug one process without
torchrun, set all four as in the diff.

Next time: `print({k: v for k, v in os.environ.items() if "RANK" in k})` in the first
line of the script shows what the launcher gave it.

Links: https://github.com/tinyvision/DAMO-YOLO/issues/63 (started without the launcher)
https://github.com/hzwer/ECCV2022-RIFE/issues/52 (RANK was set by hand, then MASTER_ADDR is missing)
"""

# %% given
import os

import torch.distributed as dist

# %% broken
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% fixed
os.environ.setdefault("RANK", "0")
os.environ.setdefault("WORLD_SIZE", "1")
os.environ.setdefault("MASTER_ADDR", "localhost")
os.environ.setdefault("MASTER_PORT", "0")
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% signs
# nvironment variable '?(?:RANK|WORLD_SIZE)'? (?:expected|is not set|not set|must be set)
# maybe: KeyError: '?(?:RANK|WORLD_SIZE)\b
# with: environ\b|os\.py", line \d+, in __getitem__|_env_rendezvous_handler|_get_env_or_raise
# with: ^\W*KeyError: '?(?:RANK|WORLD_SIZE)\W*$
# unless: pandas[./]core
# maybe: rror initializing torch\.distributed using env
# maybe: int\(os\.(?:environ\.get|getenv)\(.(?:RANK|WORLD_SIZE)
