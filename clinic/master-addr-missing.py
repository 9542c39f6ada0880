r"""Environment variable MASTER_ADDR expected, but not set.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: environment variable MASTER_ADDR expected, but not set

You see: each spawned process fails in `init_process_group(rank=..., world_size=...)`,
although both numbers were passed.

Cause: rank and world size say who you are, but where rank 0 listens is still read from
`MASTER_ADDR` and `MASTER_PORT`. torchrun sets them; `mp.spawn` does not.

Cure: set both in the parent, before the processes start; they inherit them. Or pass
`init_method="tcp://localhost:29500"`, which needs no variable.

Next time: the traceback says `env:// rendezvous`. It needs four variables, and reads
from the environment those that you did not pass as arguments.

Links: https://github.com/hzwer/ECCV2022-RIFE/issues/52 (rank set by hand, MASTER_ADDR missing)
"""

# %% given
import os
import socket

import torch.distributed as dist
import torch.multiprocessing as mp

with socket.create_server(("localhost", 0)) as server:
    free_port = server.getsockname()[1]


def worker(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.barrier()
    if rank == 0:
        print("two ranks met")
    dist.destroy_process_group()


# %% broken
mp.start_processes(worker, nprocs=2, start_method="fork")

# %% fixed
os.environ["MASTER_ADDR"] = "localhost"
os.environ["MASTER_PORT"] = f"{free_port}"
mp.start_processes(worker, nprocs=2, start_method="fork")

# %% signs
# nvironment variable '?MASTER_(?:ADDR|PORT)'? (?:expected|is not set|not set|must be set)
# KeyError: '?MASTER_(?:ADDR|PORT)\b
