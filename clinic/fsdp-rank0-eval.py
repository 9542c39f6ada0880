r"""Rank 0 evaluates an FSDP model between steps, and the next step hangs.

class: TP/FSDP2
symptom: hang
runs on: 2 ranks
chapter: ch12_fsdp
signature: rank 1 waits in `loss\.backward\(\)`

You see: no message. Rank 0 prints its validation, with a correct loss. Then the job
hangs in the next training step: rank 0 in the forward, the other ranks in `backward()`.
A stack dump shows no rank in the validation. (The simpler case, in which the job hangs
in the validation itself, is {ref}`clinic-fsdp-rank0-forward`.)

Cause: each forward of a sharded model gathers weights from all ranks, even under
`no_grad`. The other ranks begin their next step, so rank 0's validation gets matched
with their forward. From then on, rank 0 is one forward pass behind, and its next
forward gets matched with their backward. Backward gathers the units in reverse order,
so rank 0 puts rows of two different layers into one matrix. Eventually, rank 0's
all-gather meets a reduce-scatter, and all ranks wait.

Cure: let all ranks evaluate, each on its share of the data or all on the same batch,
and let rank 0 print. Or evaluate a whole copy on rank 0. For this, call
`get_model_state_dict` with `full_state_dict=True` on all ranks. On rank 0, load what it
returns into a model that is not sharded, and evaluate this model.

Next time: count the forward passes of each rank, including those under `no_grad`. If
rank 0 makes more of them than the other ranks, look for the `if` above the extra
passes. If the whole model is one unit, all training steps run, and rank 0 hangs only in
its last validation.

Links: https://github.com/pytorch/pytorch/issues/152964 (jobs freeze when some ranks skip the forward)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

x = torch.ones(2, 4)
layers = [fully_shard(nn.Linear(4, 4)) for _ in range(3)]
model = fully_shard(nn.Sequential(*layers, nn.Linear(4, 1)))

# %% broken
for step in range(2):
    model.train()
    loss = model(x).mean()
    loss.backward()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            print("step", step, "validated", model(x).shape)
print("2 steps done")

# %% fixed
for step in range(2):
    model.train()
    loss = model(x).mean()
    loss.backward()
    model.eval()
    with torch.no_grad():
        y = model(x)
    if rank == 0:
        print("step", step, "validated", y.shape)
print("2 steps done")
