r"""torch.autograd.grad under DDP: gradients are not averaged.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: gradients \S+ and \S+ instead of
guard: gradient module\.weight is not the same on all ranks

You see: nothing. The ranks' weights drift apart.

Cause: DDP's hooks sit where autograd accumulates into `.grad`. `torch.autograd.grad`
returns the gradients instead of accumulating them, so no hook runs.

Cure: call `backward` and read `.grad`. If the function must be `autograd.grad` (a
gradient penalty, a norm per task), reduce what it returns by hand.

Next time: compare a checksum of the weights across ranks after the step.

Links: https://github.com/pytorch/pytorch/issues/47562 (autograd.grad under DDP gives wrong gradients)
https://github.com/NVIDIA/apex/issues/457 (gradients out of place are not reduced)
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
loss = ddp(x).mean()
(model.weight.grad,) = torch.autograd.grad(loss, [model.weight])
optimizer.step()
print(f"weight {model.weight.item():.2f}")

# %% fixed
loss = ddp(x).mean()
loss.backward()
optimizer.step()
print(f"weight {model.weight.item():.2f}")

# %% invariant: the gradient is the same on all ranks, that of one process on all data
grads = [torch.empty(1, 1) for _ in range(world_size)]
dist.all_gather(grads, model.weight.grad)
mean = x.mean()
dist.all_reduce(mean)
words = " and ".join(f"{grad.item():g}" for grad in grads)
right = all(grad.item() == mean.item() / world_size for grad in grads)
assert right, f"gradients {words} instead of {mean.item() / world_size:g}"

# %% guarded
from allranks.guard import Guard

watch = Guard(ddp, optimizer)
loss = ddp(x).mean()
(model.weight.grad,) = torch.autograd.grad(loss, [model.weight])
watch.step()
optimizer.step()
