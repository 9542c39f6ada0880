r"""loss_fn and target required for last stage: no target was passed.

class: pipeline
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: rank 1: .*PipeliningMetadataError: .*loss_fn and target required for last stage

You see: the last stage refuses the first step. Older versions failed in the loss
instead, with `NoneType`.

Cause: a schedule with a `loss_fn` computes the loss on the last stage, so that is where
it needs the target. The usual slip is to write the same call for all ranks,
`schedule.step(x)`.

Cure: call `step(x)` on the first stage, `step(target=y)` on the last one, and `step()`
between them. A rank with both calls `step(x, target=y)`.

Next time: the message names the stage; look at what that rank passes.

Links: https://docs.pytorch.org/docs/stable/distributed.pipelining.html (step: target)
"""

# %% given
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

mse = nn.functional.mse_loss
stage = PipelineStage(nn.Linear(4, 4), rank, world_size, device)
x, y = torch.ones(4, 4), torch.zeros(4, 4)

# %% broken
losses = []
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=mse)
if rank == 0:
    schedule.step(x)
else:
    schedule.step(losses=losses)
print("losses:", len(losses))

# %% fixed
losses = []
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=mse)
if rank == 0:
    schedule.step(x)
else:
    schedule.step(target=y, losses=losses)
print("losses:", len(losses))

# %% signs
# loss_fn and target required for last stage
