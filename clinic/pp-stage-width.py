r"""mat1 and mat2 shapes cannot be multiplied: stage widths differ.

class: pipeline
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: rank 1: .*mat1 and mat2 shapes cannot be multiplied \(2x4 and 5x2\)

You see: a matrix multiplication fails in the stage that receives, in the first step.
The stage before it has done nothing wrong, and says nothing or that the connection was
closed.

Cause: each rank builds its stage alone, so whether two stages fit shows only when the
first activation arrives.

Cure: cut one model into stages, on the meta device or the CPU, instead of writing each
stage separately.

Next time: run `nn.Sequential(*all_stages)` on one process with one sample before you
distribute it.

Links: https://docs.pytorch.org/docs/stable/distributed.pipelining.html (splitting a model)
"""

# %% given
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

x = torch.ones(4, 4)

# %% broken
parts = [nn.Linear(4, 4), nn.Linear(5, 2)]
stage = PipelineStage(parts[rank], rank, world_size, device)
schedule = ScheduleGPipe(stage, n_microbatches=2)
y = schedule.step(x) if rank == 0 else schedule.step()
print("output:", None if y is None else list(y.shape))

# %% fixed
parts = [nn.Linear(4, 4), nn.Linear(4, 2)]
stage = PipelineStage(parts[rank], rank, world_size, device)
schedule = ScheduleGPipe(stage, n_microbatches=2)
y = schedule.step(x) if rank == 0 else schedule.step()
print("output:", None if y is None else list(y.shape))

# %% signs
# maybe: mat1 and mat2 shapes cannot be multiplied
# with: torch.distributed.pipelining
