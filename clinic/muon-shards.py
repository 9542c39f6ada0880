r"""Muon treats each rank's rows as if they were the matrix.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch12_fsdp
signature: the step is \d+ % off
beyond: each rank steps along its own rows, so the ranks' numbers have nothing in common to compare

You see: nothing. The loss falls, but not as on one GPU, and the learning rate that was
best there is not best here. With other numbers of ranks it is different again.

Cause: Muon's step is a matrix that is as orthogonal as possible, and its formula
multiplies the whole momentum with itself. AdamW computes number by number, so a rank
can step with a part. If Muon gets `grad.to_local()`, or a tensor-parallel part, the
formula works just as well on these rows, but its result is not a part of the right one.

Cure: give the formula whole matrices. `torch.optim.Muon` does this by itself if it gets
the DTensors, which exchange rows for each product: 11 to 16 messages per matrix.
In {ref}`ch12_fsdp`, each rank computes some of the matrices, as a whole, and sends them.

Next time: compare one step on two ranks with the step of one process. For any optimizer
that looks at more than one number at a time, ask where the others are.

Links: https://github.com/deepspeedai/DeepSpeed/issues/8437 (a step that depends on the number of GPUs: 39 % off)
https://github.com/NVIDIA/Megatron-LM/issues/5961 (why Muon was refused under FSDP2)
https://github.com/KellerJordan/Muon/issues/45 (flat shards, which are no matrices at all)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard


def muon(params):
    return torch.optim.Muon(params, lr=0.1, weight_decay=0)


torch.manual_seed(0)
model, alone = nn.Linear(8, 4, bias=False), nn.Linear(8, 4, bias=False)
model.load_state_dict(alone.state_dict())
before = alone.weight.detach().clone()
fully_shard(model)
x = torch.randn(16, 8)
for net in alone, model:
    net(x).square().mean().backward()

# %% broken
rows = nn.Parameter(model.weight.to_local().detach())  # in the same memory
rows.grad = model.weight.grad.to_local()
muon([rows]).step()
print("updated:", tuple(model.weight.shape))

# %% fixed
muon(model.parameters()).step()
print("updated:", tuple(model.weight.shape))

# %% invariant: the step is that of one process
muon(alone.parameters()).step()
off = (model.weight.full_tensor() - alone.weight).norm()
off /= (alone.weight - before).norm()
assert off < 1e-3, f"the step is {100 * off.item():.0f} % off"
