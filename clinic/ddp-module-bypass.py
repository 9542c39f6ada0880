r"""Training through ddp.module: gradients are not averaged.

class: DDP
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: weights \S+ and \S+ instead of
guard: gradient module\.weight is not the same .* 3 on rank 0 and 4 on

You see: nothing. Each rank's loss falls, but the checkpoint is of a model that saw only
rank 0's share of the data.

Cause: DDP prepares its hooks for a backward pass in its own `forward`. `ddp.module` is
the bare model, so its gradients stay on the rank. A method that you call on it, such as
`ddp.module.loss(x)`, bypasses DDP in the same way.

Cure: call `ddp(x)`. If you need another method, reach it through `forward`, for example
with an argument that says which part to run.

Next time: compare a parameter's checksum on all ranks after a step: they must be equal
to the last bit.

Links: https://github.com/pytorch/pytorch/pull/20282 (a test fixes that calling ddp.module does not synchronize)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

x = torch.tensor([[2.0], [4.0]]) if rank == 0 else torch.tensor([[6.0], [2.0]])
model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

# %% broken
loss = ddp.module(x).mean()
loss.backward()
optimizer.step()
print(f"weight {model.weight.item():.2f}")

# %% fixed
loss = ddp(x).mean()
loss.backward()
optimizer.step()
print(f"weight {model.weight.item():.2f}")

# %% invariant: all ranks hold the weight of one process that saw all samples
weights = [torch.empty(1, 1) for _ in range(world_size)]
dist.all_gather(weights, model.weight.detach())
mean = x.mean()
dist.all_reduce(mean)
want = 1 - 0.1 * mean.item() / world_size
words = " and ".join(f"{weight.item():.2f}" for weight in weights)
right = all(abs(weight.item() - want) < 1e-6 for weight in weights)
assert right, f"weights {words} instead of {want:.2f}"

# %% guarded
from allranks.guard import Guard

watch = Guard(ddp, optimizer)
loss = ddp.module(x).mean()
loss.backward()
watch.step()
optimizer.step()
