r"""Gradients are never averaged: the last micro-batch is in no_sync().

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: gradients \S+ and \S+ instead of
guard: gradient module\.weight is not the same on all ranks

You see: steps are fast, and each rank trains a model of its own.

Cause: under `no_sync` a backward pass leaves its gradients on the rank. The first
backward outside of it sends what has accumulated. If there is none, nothing is ever
sent.

Cure: run the last micro-batch of each step, forward and backward, outside of
`no_sync`.

Next time: count the `all_reduce` calls of a step with the profiler: there must be at
least one.

Links: https://github.com/pytorch/pytorch/pull/21736 (design of no_sync: one more input outside of it)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

batches = torch.arange(1.0, 9.0).view(4, 2, 1) + 10 * rank
model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)

# %% broken
with ddp.no_sync():
    for x in batches:
        loss = ddp(x).mean() / len(batches)
        loss.backward()
optimizer.step()
print(f"weight {model.weight.item():.3f}")

# %% fixed
with ddp.no_sync():
    for x in batches[:-1]:
        loss = ddp(x).mean() / len(batches)
        loss.backward()
loss = ddp(batches[-1]).mean() / len(batches)
loss.backward()
optimizer.step()
print(f"weight {model.weight.item():.3f}")

# %% invariant: the gradient is the same on all ranks, that of one process on all data
grads = [torch.empty(1, 1) for _ in range(world_size)]
dist.all_gather(grads, model.weight.grad)
mean = batches.mean()
dist.all_reduce(mean)
words = " and ".join(f"{grad.item():g}" for grad in grads)
right = all(abs(grad.item() - mean.item() / world_size) < 1e-4 for grad in grads)
assert right, f"gradients {words} instead of {mean.item() / world_size:g}"

# %% guarded
from allranks.guard import Guard

watch = Guard(ddp, optimizer)
with ddp.no_sync():
    for x in batches:
        loss = ddp(x).mean() / len(batches)
        loss.backward()
watch.step()
optimizer.step()
