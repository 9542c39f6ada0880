r"""Gradients are averaged, but the initial weights were never equal.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch4_ranks
signature: weights \S+ and \S+ after
guard: parameter weight is not the same on all ranks

You see: each rank's loss falls, and stops above what one process reaches. Here no rank
finds the weight 3, however long it trains.

Cause: the loop averages gradients by hand, but each rank has drawn its own initial
weights. Replicas that take the same steps from different places stay apart. Training
ends where the ranks' gradients cancel, and that is no rank's minimum.

Cure: broadcast the parameters, and the buffers, from rank 0 once before training. DDP
does both when it is built. Equal seeds also help, until one rank draws one number more.

Next time: all_gather a checksum of the parameters after the first step.

Links: https://github.com/pytorch/pytorch/issues/36613 (DDP copies rank 0's parameters when it is built)
"""

# %% given
from torch import nn

x = torch.tensor([[2.0], [4.0]]) if rank == 0 else torch.tensor([[6.0], [2.0]])
torch.manual_seed(rank)
model = nn.Linear(1, 1, bias=False)

# %% broken
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(20):
    optimizer.zero_grad()
    (model(x) - 3 * x).square().mean().backward()
    dist.all_reduce(model.weight.grad)
    model.weight.grad /= world_size
    optimizer.step()
print(f"weight {model.weight.item():.2f}")

# %% fixed
dist.broadcast(model.weight.detach(), src=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(20):
    optimizer.zero_grad()
    (model(x) - 3 * x).square().mean().backward()
    dist.all_reduce(model.weight.grad)
    model.weight.grad /= world_size
    optimizer.step()
print(f"weight {model.weight.item():.2f}")

# %% invariant: after the same steps all ranks hold the same weights
weights = [torch.empty(1, 1) for _ in range(world_size)]
dist.all_gather(weights, model.weight.detach())
words = " and ".join(f"{weight.item():.2f}" for weight in weights)
assert len({weight.item() for weight in weights}) == 1, (
    f"weights {words} after 20 steps"
)

# %% guarded
from allranks.guard import Guard

optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
watch = Guard(model, optimizer)
