r"""Address already in use (EADDRINUSE): two jobs want the same port.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: EADDRINUSE

You see: the job dies in `init_process_group`, before the first step, with `address
already in use`. The same script worked yesterday.

Cause: rank 0 opens a server on `MASTER_PORT`, where the ranks find each other. Another
job on this machine has the port: a colleague's, a zombie of your last run, or a second
process of this job that also thinks it is rank 0.

Cure: find out who has it: `ss -ltnp 'sport = :29500'`, or `lsof -i :29500`, names the
process (with `sudo` if it is not yours). End it if it is left over from your last run.
If it is somebody's job, take another port, `--master-port 29501`, or let torchrun
choose: `--standalone` takes a free one, and so does torch 2.13 on one machine if you
name none. In a single process, as here, port 0 means "any free one"; several processes
need a number that all of them know.

Next time: never write a port into a script that two people may start on one machine.

Links: https://github.com/meta-pytorch/torchtune/issues/392 (two fine-tunings on one machine, port 29500)
https://github.com/pytorch/pytorch/issues/85604 (two processes of one job open the same port)
"""

# %% given
import os

import torch.distributed as dist

other_job = dist.TCPStore("localhost", 0, is_master=True)
os.environ |= {"MASTER_ADDR": "localhost", "RANK": "0", "WORLD_SIZE": "1"}

# %% broken
os.environ["MASTER_PORT"] = f"{other_job.port}"
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% fixed
os.environ["MASTER_PORT"] = "0"
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% signs
# EADDRINUSE, message: address already in use
# server socket has failed to (?:listen|bind).*Address already in use
# failed to listen on any local network address
# RuntimeError: Address already in use
# maybe: \[Errno (?:98|48)\] Address already in use
# maybe: [Aa]ddress already in use
# another process is utilizing it
# maybe: [Pp]ort \d+ (?:is )?(?:already )?in use(?!, trying another)
# Only one usage of each socket address
# \[WinError 10048\]
# maybe: EADDRINUSE
# with: torch[./]distributed|torchrun|TCPStore|init_process_group|rendezvous|master[-_ ]port|MASTER_PORT
# with: accelerate|deepspeed|lightning|\[rank0\]|\[rank1\]|local_rank|socket\.cpp|NCCL INFO|DistNetworkError|ChildFailedError
# with: torchrun|torch[./]distributed|distributed_c10d|ChildFailedError|DistributedDataParallel|local_rank|local-rank|LOCAL_RANK|init_process_group|world_size|WORLD_SIZE
# with: accelerate|deepspeed|DeepSpeed|ightning|mmcv[./]runner|mmengine|ProcessGroup|NCCL INFO|NCCL WARN|NCCL version|NCCL error|ProcessRaisedException
# with: multiprocessing[./]spawn|mp\.spawn|nn[./]parallel|DataParallel|egatron|orovod|olossal|dist_train|--nproc|node_rank|MASTER_(?:ADDR|PORT)
# with: \[rank0\]|\[rank1\]|\[rank2\]|\[rank3\]|\[rank4\]|\[rank5\]|\[rank6\]|\[rank7\]
# with: ^\W*(?:[\w.]+: )?(?:\[Errno (?:98|48)\] )?Address already in use\W*$
