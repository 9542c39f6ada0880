r"""Failed to pass monitoredBarrier: the message names the missing rank.

class: process group
symptom: crash
runs on: 3 ranks
chapter: ch4_ranks
signature: Ranks 2 failed to pass monitoredBarrier in 1000 ms

You see: the barrier's timeout passes, one second here, 30 minutes if you give none.
Then rank 0 says which ranks failed to pass. The others lose their connection to it, and
say that its log has the reason. `dist.barrier()` would name no rank.

Cause: rank 2 had nothing to evaluate, and left through an early exit above the barrier.
In `monitored_barrier` every rank reports to rank 0 separately, so rank 0 knows which
ones did not.

Cure: put the barrier where every rank reaches it. Keep `monitored_barrier` for
debugging: it needs gloo, so if you train with NCCL, make a gloo group for it.

Next time: `wait_all_ranks=True` lists all missing ranks, not only the first. Torch
calls it by itself under `TORCH_DISTRIBUTED_DEBUG=DETAIL`.

Links: https://docs.pytorch.org/docs/stable/distributed.html (monitored_barrier)
"""

# %% given
from datetime import timedelta

limit = timedelta(seconds=1)

# %% broken
batches = [] if rank == 2 else [rank]
if batches:
    dist.monitored_barrier(timeout=limit, wait_all_ranks=True)
print("evaluated", len(batches))

# %% fixed
batches = [] if rank == 2 else [rank]
dist.monitored_barrier(timeout=limit, wait_all_ranks=True)
print("evaluated", len(batches))

# %% signs
# failed to pass monitoredBarrier in
# echo: successfully reached monitoredBarrier, but received errors
