r"""Gradients of a layer added after DDP wrapping aren't averaged.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: gradient of 1\.weight \S+ and \S+ instead of
guard: parameter module\.1\.weight is not the same .* 1 on rank 0 and 2 on

You see: nothing. The old layers are equal on all ranks, but the new one differs from
rank to rank, from its random initial values on.

Cause: DDP lists the parameters, broadcasts them and attaches its hooks to them when it
is built. What comes later is not on the list, so neither its initial values nor its
gradients are shared. If the new layer replaces an old one, the old one's parameters
stay on the list, and the second step fails with "Expected to have finished reduction".

Cure: finish the model, and wrap it last. After a change, wrap the bare model again and
rebuild the optimizer.

Next time: compare the set of parameters at wrapping with the set in the optimizer, and
their checksums across ranks after the first step.

Links: https://github.com/pytorch/pytorch/issues/12603 (a weight assigned after wrapping has no hook)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

x = torch.tensor([[2.0], [4.0]]) if rank == 0 else torch.tensor([[6.0], [2.0]])
first, head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
nn.init.ones_(first.weight)
nn.init.constant_(head.weight, 1 + rank)  # as random numbers would, ranks differ
model = nn.Sequential(first)

# %% broken
ddp = DistributedDataParallel(model)
model.append(head)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    ddp(x).square().mean().backward()
    optimizer.step()
print("trained:", ", ".join(dict(model.named_parameters())))

# %% fixed
model.append(head)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    ddp(x).square().mean().backward()
    optimizer.step()
print("trained:", ", ".join(dict(model.named_parameters())))

# %% invariant: every parameter has the same gradient on all ranks
for name, parameter in model.named_parameters():
    grads = [torch.empty_like(parameter) for _ in range(world_size)]
    dist.all_gather(grads, parameter.grad)
    first, second = (grad.item() for grad in grads)
    what = f"gradient of {name} {first:.2f} and {second:.2f}"
    assert first == second, f"{what} instead of one for all"

# %% guarded
from allranks.guard import Guard

ddp = DistributedDataParallel(model)
model.append(head)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
watch = Guard(ddp, optimizer)
