r"""Number of microbatches must be at least the number of stages (1F1B).

class: pipeline
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: Number of microbatches \(1\) must be greater than or equal to the number of stages \(2\)

You see: a `ValueError` on every rank, where the schedule is made or in its first step.

Cause: 1F1B begins on each stage with one forward for every stage that follows, and only
then alternates. With fewer micro-batches than stages it never gets there. GPipe accepts
so few, but then most stages idle.

Cure: use more micro-batches; four times the number of stages is a usual start. If the
batch is too small for that, use fewer stages.

Next time: with M micro-batches and S stages, the part of the time that is used is
M / (M + S - 1).

Links: https://docs.pytorch.org/docs/stable/distributed.pipelining.html (Schedule1F1B)
"""

# %% given
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

stage = PipelineStage(nn.Linear(4, 4), rank, world_size, device)
batch, mse = torch.ones(4, 4), nn.functional.mse_loss

# %% broken
schedule = Schedule1F1B(stage, n_microbatches=1, loss_fn=mse)
if rank == 0:
    schedule.step(batch)
else:
    schedule.step(target=batch)
print("trained on", len(batch))

# %% fixed
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=mse)
if rank == 0:
    schedule.step(batch)
else:
    schedule.step(target=batch)
print("trained on", len(batch))

# %% signs
# Number of microbatches \(\d+\) must be greater than or equal to the number of stages
# maybe: requires the number of microbatches .* to be a multiple of
# contiguous micro-batches in a virtual pipeline stage
