r"""Per-parameter hooks all-reduce gradients in different orders.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch8_ddp_by_hand
signature: gradient of left \S+ instead of
guard: the gradient left\.weight .*is not the same on all ranks

You see: nothing, if the two layers have the same shape. The gradients are mixed up, and
the ranks' weights drift apart. With different shapes it crashes or hangs, which is the
luckier case.

Cause: the hooks run in the order in which backward computes the gradients, and that may
depend on the rank's own forward pass: on a branch, on a random order of layers, on
which experts a batch uses. The n-th all_reduce of one rank then meets the n-th of
another, though they carry gradients of different layers.

Cure: let the hooks only note what is ready, and reduce in an order that is the same on
all ranks. Here that is the order of the parameters, after backward. DDP keeps to the
order of its buckets: one that is full early waits for those before it.

Next time: compare the gradients of one step with the gradients of one process that has
all the data. Weights that differ from rank to rank show it as well.

Links: https://github.com/deepspeedai/DeepSpeed/issues/2343 (gradients in another order on each rank are wrong under ZeRO-2)
https://github.com/deepspeedai/DeepSpeed/issues/1186 (why the order of the buckets must be the same everywhere)
"""

# %% given
from torch import nn

layers = {name: nn.Linear(1, 1, bias=False) for name in ("left", "right")}
model = nn.ModuleDict(layers)
x, factor = torch.tensor([1.0 + rank]), {"left": 1.0, "right": 10.0}
order = ["left", "right"] if rank == 0 else ["right", "left"]


def average(weight):
    dist.all_reduce(weight.grad)
    weight.grad /= world_size


# %% broken
for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(average)
sum(factor[name] * model[name](x) for name in order).backward()
print("gradients", *(w.grad.item() for w in model.parameters()))

# %% fixed
sum(factor[name] * model[name](x) for name in order).backward()
for weight in model.parameters():
    average(weight)
print("gradients", *(w.grad.item() for w in model.parameters()))

# %% invariant: each gradient is the mean over the ranks
mean = x.clone()
dist.all_reduce(mean)
mean /= world_size
for name, layer in model.items():
    got, want = layer.weight.grad.item(), factor[name] * mean.item()
    assert got == want, f"gradient of {name} {got:g} instead of {want:g}"

# %% guarded
from allranks.guard import Guard

with torch.no_grad():
    for weight in model.parameters():
        weight.fill_(1)
watch = Guard(model)
for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(average)
sum(factor[name] * model[name](x) for name in order).backward()
watch.step()
