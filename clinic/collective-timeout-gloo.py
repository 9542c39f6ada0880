r"""Timed out waiting for recv: one rank never reaches the collective.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: Timed out waiting 1000ms for recv operation to complete

You see: after a long silence (30 minutes unless you say otherwise; here one second),
the waiting ranks raise an error in a collective that is not to blame. The message does
not name the missing rank.

Cause: one rank left the loop early, waits somewhere else, or is slow: a longer file, a
checkpoint, a download. gloo waits for its bytes until the group's timeout.

Cure: have every rank take part, or none. Give the group a short timeout while you
debug: `init_process_group(timeout=timedelta(seconds=60))`.

Next time: look at the ranks that did not raise: run `py-spy dump` on them, or call
`monitored_barrier`, which names who is missing.

Links: https://github.com/pytorch/gloo/issues/511 (the message names no rank)
https://github.com/pytorch/gloo/pull/513 (later versions name the ranks)
https://github.com/facebookresearch/detectron2/issues/5121 (after 1800000 ms)
"""

# %% given
from datetime import timedelta

group = dist.new_group(timeout=timedelta(seconds=1))
losses = [1.0] if rank == 0 else []  # rank 1 has no more batches

# %% broken
if losses:
    total = torch.tensor(sum(losses))
    dist.all_reduce(total, group=group)
    print("sum of losses:", total.item())

# %% fixed
total = torch.tensor(sum(losses, start=0.0))
dist.all_reduce(total, group=group)
print("sum of losses:", total.item())

# %% signs
# Timed out waiting (?:\d+ms )?for recv operation to complete
# maybe: Timed out waiting (?:\d+ms )?for send operation to complete
# maybe: Application timeout caused pair closure
