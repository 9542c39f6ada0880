r"""Only rank 0 evaluates an FSDP model.

class: TP/FSDP2
symptom: hang
runs on: 2 ranks
chapter: ch12_fsdp
signature: rank 0 waits in `loss = model\(

You see: no message. The job hangs at the first validation, or at a generated sample for
the log, and ends after the group's timeout. If the others go on training, NCCL's
watchdogs name two collectives with one `SeqNum`: an all-gather here, a reduce-scatter
there.

Cause: every forward of a sharded model gathers its weights from all ranks. With DDP,
rank 0 has a whole copy and may evaluate alone, but here it waits for ranks that are
elsewhere. If they go on to train, their next gathers pair with rank 0's, and only a
later collective does not fit, so the hang is not at the `if`: see
{ref}`clinic-fsdp-rank0-eval`.

Cure: all ranks run the forward, on a share of the data or on the same batch; rank 0
alone prints. A rank that has no data needs a dummy batch.

Next time: dump a stack of each rank, and look for one inside your validation while the
others have finished or are elsewhere. Above it is the `if` that the others did not
pass.

Links: https://github.com/pytorch/pytorch/issues/152964 (jobs freeze when some ranks skip the forward)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

model = fully_shard(nn.Linear(4, 1))

# %% broken
if rank == 0:
    loss = model(torch.ones(2, 4)).mean()
    print("validated", loss.shape)
print("at step 2")

# %% fixed
loss = model(torch.ones(2, 4)).mean()
if rank == 0:
    print("validated", loss.shape)
print("at step 2")
