r"""The loss is averaged over the ranks before backward.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: gradient \S+ instead of
guard: 0\.5 times the gradient of one process on the union

You see: the loss in the log is the mean over all ranks, as intended, but the gradients
are too small by a factor of the number of ranks. Torch 2.13 warns once that
`c10d::allreduce_` has no autograd kernel.

Cause: `all_reduce` writes the sum into the tensor's memory. Autograd does not know
that: the graph is still the graph of the rank's own loss, now divided by the number of
ranks, and DDP divides its gradients once more. Without DDP it is worse: summing the
losses does not exchange gradients, so the ranks share nothing.

Cure: reduce a detached copy for the log, and leave the loss alone.

Next time: look for a collective between the loss and `backward`.

Links: https://github.com/sanderwood/bgpt/issues/5 (loss reduced and divided before backward under DDP)
https://github.com/NVIDIA/apex/issues/664 (asks which is right: reduce the loss, or a copy for the log)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

x = torch.tensor([[2.0], [4.0]]) if rank == 0 else torch.tensor([[6.0], [2.0]])
model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
ddp = DistributedDataParallel(model)

# %% broken
loss = ddp(x).mean()
dist.all_reduce(loss)
loss /= world_size
loss.backward()
print(f"loss {loss.item():g}, gradient {model.weight.grad.item():g}")

# %% fixed
loss = ddp(x).mean()
shown = loss.detach().clone()
dist.all_reduce(shown)
shown /= world_size
loss.backward()
print(f"loss {shown.item():g}, gradient {model.weight.grad.item():g}")

# %% invariant: the gradient is that of one process on all samples
mean = x.mean()
dist.all_reduce(mean)
got, want = model.weight.grad.item(), mean.item() / world_size
assert got == want, f"gradient {got:g} instead of {want:g}"

# %% guarded
from allranks.guard import Guard


def backward(batches):
    loss = ddp(batches[0]).mean()
    dist.all_reduce(loss)
    loss /= world_size
    loss.backward()


watch = Guard(ddp)
watch.preflight(lambda model, union: model(union).mean(), x, backward=backward)

# %% signs
# c10d::all_?reduce_?: an autograd kernel was not registered
# with: This may lead to silently incorrect behavior
