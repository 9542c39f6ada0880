r"""The size of tensor a must match: micro-batches of unequal size.

class: pipeline
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: rank 1: RuntimeError: The size of tensor a \(3\) must match

You see: on the last stage, the loss meets an output and a target of different lengths.
Nothing says "not divisible". The other stages say that the connection was closed, or
wait.

Cause: the batch is cut with `tensor_split`: 10 samples cut into 4 are 3, 3, 2, 2. The
stages agree on the shape of the first micro-batch and keep their buffers for it; the
third one is shorter, but its buffer is not.

Cure: choose a batch size that is a multiple of the number of micro-batches, and
`drop_last=True` for the last batch.

Next time: `assert len(x) % n_microbatches == 0` above `schedule.step`.

Links: https://github.com/pytorch/pytorch/issues/126600 (uneven micro-batches)
https://github.com/pytorch/torchtitan/pull/784 (checks it before it starts)
"""

# %% given
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

mse = nn.functional.mse_loss
stage = PipelineStage(nn.Linear(4, 4), rank, world_size, device)

# %% broken
batch = torch.ones(10, 4)
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=mse)
if rank == 0:
    schedule.step(batch)
else:
    schedule.step(target=batch)
print("trained on", len(batch))

# %% fixed
batch = torch.ones(12, 4)
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=mse)
if rank == 0:
    schedule.step(batch)
else:
    schedule.step(target=batch)
print("trained on", len(batch))

# %% signs
# maybe: The size of tensor a \(\d+\) must match the size of tensor b \(\d+\) at non-singleton dimension 0
# with: torch.distributed.pipelining
# with: pipelining|PipelineStage|ScheduleGPipe|Schedule1F1B|PipelineSchedule|pipeline_parallel
