r"""Rank 0 evaluates an FSDP model between steps, and the next step hangs.

class: TP/FSDP2
symptom: hang
runs on: 2 ranks
chapter: ch12_fsdp
signature: rank 1 waits in `loss\.backward\(\)`

You see: no message. Rank 0 prints its validation, with a correct loss, and the job hangs
in the next training step: rank 0 in the forward, the others in `backward()`. No stack
is in the validation. If the whole model is one unit, all steps run, and rank 0 hangs in
its last validation.

Cause: `model.eval()` sends nothing, but each forward of a sharded model gathers weights
from all ranks, also under `no_grad`. The others don't evaluate. They begin the next
step, and the gathers of their forward answer those of rank 0's validation, because both
gather the same units in the same order. So rank 0 is a forward behind. Its next forward
pairs with their backward, which gathers the units in reverse: rank 0 gets a matrix whose
rows belong to two layers. Then the others reduce gradients, while rank 0 still gathers,
and all wait.

Cure: all ranks evaluate, each on its share or all on the same batch, and rank 0 prints.
Or all ranks call `get_model_state_dict` with `full_state_dict=True`, and rank 0 loads
what it returns into a model that is not sharded, and evaluates that one alone.

Next time: count the forwards of each rank, those under `no_grad` included. If rank 0
makes more of them than the others, look for the `if` above the extra ones.

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
