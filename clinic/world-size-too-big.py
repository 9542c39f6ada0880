r"""1/2 clients joined: WORLD_SIZE exceeds the number of processes.

class: process group
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: Timed out after \d+ seconds waiting for clients\. 1/2 clients joined

You see: `init_process_group` does not return on any rank. After its timeout rank 0
counts: 1/2 clients joined. The other ranks say "wait timeout" and name a key of the
store. Unless you say otherwise, that takes 10 minutes for "nccl", and 30 for "gloo" or
for no name at all; here it takes one second.

Cause: the group is complete when WORLD_SIZE processes have connected to rank 0's store.
One was never started, or died before that: on import, on a missing file, on a node that
is still in the queue.

Cure: start all of them; torchrun sets WORLD_SIZE to what it starts. Give
`init_process_group(timeout=timedelta(seconds=60))` while you set a job up.

Next time: count the processes on every node, and read the log of the one that is
missing: its own error comes minutes before this one.

Links: https://github.com/OpenRLHF/OpenRLHF/issues/1040 (1/3 clients after 1801 s)
https://github.com/pytorch/pytorch/pull/111805 (why rank 0 raises since torch 2.2)
"""

# %% given
import os
from datetime import timedelta

import torch.distributed as dist

limit = timedelta(seconds=0.9)
os.environ.update(RANK="0", MASTER_ADDR="localhost", MASTER_PORT="0")  # 0: any port

# %% broken
os.environ["WORLD_SIZE"] = "2"
dist.init_process_group("gloo", timeout=limit)
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% fixed
os.environ["WORLD_SIZE"] = "1"
dist.init_process_group("gloo", timeout=limit)
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% signs
# Timed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined
# maybe: DistStoreError: (?:wait timeout after|Timed out)
# maybe: Timed out initializing process group in store based barrier
# maybe: [Ee]rror: Socket Timeout|Timeout waiting for key|[Ww]ait timeout after \d+ms
# echo: Waiting in store based barrier to initialize
