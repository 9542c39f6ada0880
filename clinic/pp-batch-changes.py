r"""Failed to run stage backward: the last batch is smaller.

class: pipeline
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: Failed to run stage backward|Input: \['Tensor\(torch\.Size\(\[1, 4\]\)

You see: a whole epoch works, then the last batch fails in "Failed to run stage
backward", with an output and a gradient of different lengths.

Cause: the stages infer their shapes in the first step and keep the buffers for what
they receive. A smaller micro-batch arrives in a buffer of the old size. NCCL demands
that both sides name the same size, so there it may hang instead.

Cure: `drop_last=True`, or a new schedule with new stages for the other size.

Next time: compare the two sizes in the message: one is the first batch's, the other the
last batch's.

Links: https://github.com/pytorch/pytorch/issues/126600 (buffers of the first size)
"""

# %% given
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader

mse = nn.functional.mse_loss
stage = PipelineStage(nn.Linear(4, 4), rank, world_size, device)
samples = torch.ones(6, 4)

# %% broken
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=mse)
for batch in DataLoader(samples, batch_size=4):
    if rank == 0:
        schedule.step(batch)
    else:
        schedule.step(target=batch)
    print("trained on", len(batch))

# %% fixed
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=mse)
for batch in DataLoader(samples, batch_size=4, drop_last=True):
    if rank == 0:
        schedule.step(batch)
    else:
        schedule.step(target=batch)
    print("trained on", len(batch))

# %% signs
# maybe: Failed to run stage backward
# maybe: PipeliningShapeError: |has a shape mismatch: expected .* actual
# maybe: Mismatch in shape: grad_output\[\d+\] has a shape of
# with: ipeline|pipelining|backward_by_grad|Failed to run stage|PipeliningShapeError|has a shape mismatch
# unless: Stage output: \('Tensor\(torch\.Size\(\[\d+\]\).{0,80}Output gradient: .'Tensor\(torch\.Size\(\[\d+,
