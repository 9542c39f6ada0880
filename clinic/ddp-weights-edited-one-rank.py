r"""Only rank 0 loads the checkpoint, after DDP wrapped the model.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch3_save_load
signature: weights \S+ and \S+ instead of
guard: parameter module\.weight is not the same .* 5 on rank 0 and 0 on

You see: nothing. Rank 0 goes on from the checkpoint, the others from random weights.
The loss that rank 0 prints looks like a resumed training that got a bit worse.

Cause: DDP broadcasts the parameters once, when it is built. From then on it shares only
gradients, and equal gradients on different weights keep the weights different.

Cure: load before wrapping, so that the broadcast carries the weights to all ranks. Or
load on every rank.

Next time: right after loading, compare a sum over all parameters across the ranks.

Links: https://github.com/pytorch/pytorch/issues/36613 (DDP copies rank 0's parameters when it is built)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

x = torch.tensor([[2.0], [4.0]]) if rank == 0 else torch.tensor([[6.0], [2.0]])
model = nn.Linear(1, 1, bias=False)
nn.init.constant_(model.weight, rank)
checkpoint = {"weight": torch.tensor([[5.0]])}

# %% broken
ddp = DistributedDataParallel(model)
if rank == 0:
    model.load_state_dict(checkpoint)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
ddp(x).mean().backward()
optimizer.step()
print(f"weight {model.weight.item():.2f}")

# %% fixed
if rank == 0:
    model.load_state_dict(checkpoint)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
ddp(x).mean().backward()
optimizer.step()
print(f"weight {model.weight.item():.2f}")

# %% invariant: all ranks go on from the checkpoint
weights = [torch.empty(1, 1) for _ in range(world_size)]
dist.all_gather(weights, model.weight.detach())
mean = x.mean()
dist.all_reduce(mean)
want = 5 - 0.1 * mean.item() / world_size
words = " and ".join(f"{weight.item():.2f}" for weight in weights)
right = all(abs(weight.item() - want) < 1e-5 for weight in weights)
assert right, f"weights {words} instead of {want:.2f}"

# %% guarded
from allranks.guard import Guard

ddp = DistributedDataParallel(model)
if rank == 0:
    model.load_state_dict(checkpoint)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
watch = Guard(ddp, optimizer)
