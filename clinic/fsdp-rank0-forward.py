r"""Only rank 0 evaluates an FSDP model.

class: TP/FSDP2
symptom: hang
runs on: 2 ranks
chapter: ch12_fsdp
signature: rank 0 waits in `loss = model\(

You see: no message. The job hangs at the first validation, or when rank 0 generates a
sample to log, and ends after the group's timeout. If the other ranks go on training,
the timeout messages of NCCL's watchdog show two different collectives with the same
number (`SeqNum`): an all-gather on rank 0, and a reduce-scatter on the other ranks.

Cause: every forward of a sharded model gathers its weights from all ranks. With DDP,
rank 0 has a whole copy of the model and may evaluate alone. Here, rank 0 waits for
ranks that run other code. If these ranks go on to train, their next gathers get matched
with rank 0's. The job then hangs later, at the first collective that doesn't match, and
not at the `if`: see {ref}`clinic-fsdp-rank0-eval`.

Cure: let all ranks run the forward, on their shares of the data or on the same batch,
and let only rank 0 print. If a rank has no data, give it a dummy batch.

Next time: dump each rank's stack. Look for a rank that is inside your validation while
the other ranks have finished or run other code. In its stack, find the `if` that the
other ranks did not enter.

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
