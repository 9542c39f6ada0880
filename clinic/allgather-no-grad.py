r"""Contrastive loss: all_gather passes no gradients back.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: gradient \S+ instead of
guard: 0\.5 times the gradient of one process on the union

You see: the loss is right on every rank, but training is slower the more ranks there
are. Without the line that puts a rank's own rows back, `backward` fails: "element 0 of
tensors does not require grad".

Cause: `all_gather` writes into tensors that have no graph. Only a rank's own rows carry
a gradient, so each rank has its part of the sum, and DDP divides that sum by the number
of ranks.

Cure: every rank computes the same loss, so multiply it by the number of ranks: that
undoes DDP's division. If a rank's loss takes only its own rows as anchors, gather with
a function that has a backward pass, which also brings back the gradients that these
rows have in the other ranks' losses: `all_gather` of `torch.distributed.nn.functional`,
for which torch 2.13 recommends `all_gather_single` of
`torch.distributed._functional_collectives`.

Next time: compare the gradient with the gradient of one process that has the whole
batch. A factor that is exactly the number of ranks points to a sum that was averaged.

Links: https://github.com/ShiqiYu/OpenGait/issues/36 (only own embeddings carry a gradient, so the loss is scaled)
https://github.com/HobbitLong/SupContrast/issues/26 (all_gather passes no gradients back)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

everything = torch.randn(4, 3, generator=torch.Generator().manual_seed(7))
x = everything.chunk(world_size)[rank]
torch.manual_seed(0)
model = nn.Linear(3, 2, bias=False)
ddp = DistributedDataParallel(model)


def contrast(features):
    pairs = features @ features.T
    return nn.functional.cross_entropy(pairs, torch.tensor([1, 0, 3, 2]))


# %% broken
own = ddp(x)
rows = [torch.empty_like(own) for _ in range(world_size)]
dist.all_gather(rows, own)
rows[rank] = own
loss = contrast(torch.cat(rows))
loss.backward()
print(f"loss {loss:.3f}, gradient {model.weight.grad.norm():.3f}")

# %% fixed
own = ddp(x)
rows = [torch.empty_like(own) for _ in range(world_size)]
dist.all_gather(rows, own)
rows[rank] = own
loss = contrast(torch.cat(rows))
(loss * world_size).backward()
print(f"loss {loss:.3f}, gradient {model.weight.grad.norm():.3f}")

# %% invariant: the gradient is that of one process on all samples
torch.manual_seed(0)
alone = nn.Linear(3, 2, bias=False)
contrast(alone(everything)).backward()
got, want = model.weight.grad.norm().item(), alone.weight.grad.norm().item()
assert abs(got - want) < 1e-4, f"gradient {got:.3f} instead of {want:.3f}"

# %% guarded
from allranks.guard import Guard


def backward(_batches):
    own = ddp(x)
    rows = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(rows, own)
    rows[rank] = own
    contrast(torch.cat(rows)).backward()


watch = Guard(ddp)
watch.preflight(lambda model, union: contrast(model(union)), x, backward=backward)

# %% signs
# maybe: element 0 of tensors does not require grad and does not have a grad_fn
# with: all_?gather
