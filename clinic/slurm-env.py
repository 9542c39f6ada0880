r"""Environment variable RANK expected, but not set: srun, no torchrun.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: environment variable RANK expected, but not set

You see: `srun python train.py` fails on every task as if there were no launcher,
although Slurm has numbered the tasks.

Cause: Slurm calls the rank `SLURM_PROCID`, the number of ranks `SLURM_NTASKS`, the
local rank `SLURM_LOCALID`. But `env://` reads `RANK` and `WORLD_SIZE`, and knows no
other names.

Cure: translate them inside the task (in the batch script around it, `SLURM_PROCID` is
the script's own: always 0). Export a `MASTER_ADDR`, the first line of `scontrol show
hostnames`, and a `MASTER_PORT` in the batch script. Or let srun start one torchrun per
node.

Next time: `srun env | grep -E "RANK|SLURM_PROCID|MASTER"` shows what each task sees.

Links: https://github.com/ai-dynamo/aiconfigurator/pull/1554 (a review: srun defines SLURM_PROCID, not RANK)
https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/999 (the same translation, in a library)
"""

# %% given
import os

import torch.distributed as dist

task = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}
os.environ |= task | {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}

# %% broken
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% fixed
os.environ["RANK"] = os.environ["SLURM_PROCID"]
os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% signs
# maybe: environment variable (?:RANK|WORLD_SIZE) expected, but not set
# with: srun: error:
# with: SLURM_(?:PROCID|NTASKS|LOCALID|JOB_ID)
