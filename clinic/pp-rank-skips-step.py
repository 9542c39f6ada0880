r"""One pipeline stage takes fewer steps, and its neighbor hangs.

class: pipeline
symptom: hang
runs on: 2 ranks
chapter: ch6_model_parallel
signature: rank 0 waits in `schedule\.step

You see: no message. One stage has left the loop, and its neighbor waits for
activations or gradients in `_wait_batch_p2p`.

Cause: only the first stage needs inputs and only the last one targets, so the ranks'
loops can end at different steps: a different loader, a different length, a `break` on a
loss that only the last stage has.

Cure: agree before the loop on the smallest number of steps that any stage has, with one
all_reduce, as in the diff. If one stage decides during the loop (a `break` on the
loss), it must broadcast its decision in every step, before the others call
`schedule.step`.

Next time: `py-spy dump`: the ranks that wait are the neighbors of the one that left.
On NCCL a wait does not stop Python, so they may stand in a later line, at the next
`.item()`; the flight recorder shows the `send` or `recv` that no rank answered.

Links: https://docs.pytorch.org/docs/stable/distributed.pipelining.html (step on every rank)
"""

# %% given
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

mse = nn.functional.mse_loss
stage = PipelineStage(nn.Linear(4, 4), rank, world_size, device)
batch = torch.ones(4, 4)
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=mse)

# %% broken
steps = 3 if rank == 0 else 2  # the last stage's loader is shorter
for _ in range(steps):
    if rank == 0:
        schedule.step(batch)
    else:
        schedule.step(target=batch)
print("steps:", steps)

# %% fixed
steps = torch.tensor(3 if rank == 0 else 2)
dist.all_reduce(steps, op=dist.ReduceOp.MIN)
for _ in range(steps):
    if rank == 0:
        schedule.step(batch)
    else:
        schedule.step(target=batch)
print("steps:", steps.item())
