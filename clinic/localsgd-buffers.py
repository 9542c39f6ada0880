r"""Local SGD averages the weights, but not the running statistics.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch8_ddp_by_hand
signature: ranks predict \S+ and
guard: value running_mean.* is not the same on all ranks

You see: after the average all ranks have the same weights, but they do not predict the
same. What is evaluated or saved is rank 0's model, with statistics of rank 0's data only.

Cause: the average goes through `model.parameters()`. The running mean and variance of a
batch normalization are buffers, and these keep what the rank's own steps made of them.
DDP sends buffers to all ranks, but in local SGD there is no DDP in the inner steps.

Cure: average the buffers of floating-point type, too, whenever weights are averaged. A
counter such as `num_batches_tracked` is the same everywhere. The same question arises
for the inner optimizer's state: DiLoCo leaves it on each rank, on purpose.

Next time: after each average, compare `state_dict()`, not `parameters()`, between ranks.

Links: https://github.com/TsingZ0/PFLlib/issues/260 (federated averaging without the running statistics)
https://github.com/owkin/FLamby/issues/260 (the same weights, and as many models as clients)
https://github.com/pytorch/pytorch/issues/59699 (why torch averages gradients; local SGD beside it)
"""

# %% given
from torch import nn

model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
nn.init.ones_(model[1].weight)
nn.init.zeros_(model[1].bias)
x, y = torch.tensor([[1.0], [3.0]]) * (1 + 2 * rank), torch.tensor([[0.0], [1.0]])
inner = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):  # each rank alone
    inner.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    inner.step()

# %% broken
with torch.no_grad():
    for weight in model.parameters():
        dist.all_reduce(weight)
        weight /= world_size
print(f"weight {model[1].weight.item():.3f}")

# %% fixed
with torch.no_grad():
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            dist.all_reduce(tensor)
            tensor /= world_size
print(f"weight {model[1].weight.item():.3f}")

# %% invariant: all ranks predict the same
made = model.eval()(torch.ones(1, 1)).detach()
all_made = [torch.empty_like(made) for _ in range(world_size)]
dist.all_gather(all_made, made)
one, two = (value.item() for value in all_made)
assert one == two, f"ranks predict {one:.3f} and {two:.3f}"

# %% guarded
from allranks.guard import Guard

with torch.no_grad():
    for weight in model.parameters():
        dist.all_reduce(weight)
        weight /= world_size
watch = Guard(model)
watch.same(running_mean=model[0].running_mean)
