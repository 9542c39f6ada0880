r"""The loss is a sum, but DDP averages the gradients.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: gradient 120 instead of 240
guard: 0\.5 times the gradient of one process on the union

You see: training runs, but with SGD it converges more slowly the more ranks there are.
Adam divides the factor out again and so hides it, but clipping thresholds still shift.

Cause: DDP divides the summed gradients by the number of ranks, which is right for a
loss that is a mean over its batch. The gradient of a sum over all ranks' batches is the
sum of their gradients, without that division.

Cure: use a mean, or multiply the loss by the number of ranks.

Next time: compare the gradient of W ranks with the gradient of one process on all their
data.

Links: https://github.com/pytorch/pytorch/issues/37359 (averaging is wrong for a loss in sum mode)
https://github.com/facebookresearch/fairseq/issues/494 (fairseq multiplies the gradients back)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

x = torch.tensor([[2.0], [4.0]]) if rank == 0 else torch.tensor([[6.0], [2.0]])
y = -x
model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
ddp = DistributedDataParallel(model)

# %% broken
loss = nn.functional.mse_loss(ddp(x), y, reduction="sum")
loss.backward()
print("loss of this rank:", loss.item())

# %% fixed
loss = nn.functional.mse_loss(ddp(x), y, reduction="sum") * world_size
loss.backward()
print("loss of this rank:", loss.item() / world_size)

# %% invariant: the gradient is that of one process on all samples
union = [torch.empty_like(x) for _ in range(world_size)]
dist.all_gather(union, x)
alone = nn.Linear(1, 1, bias=False)
nn.init.ones_(alone.weight)
everything = torch.cat(union)
nn.functional.mse_loss(alone(everything), -everything, reduction="sum").backward()
got, want = model.weight.grad.item(), alone.weight.grad.item()
assert got == want, f"gradient {got:g} instead of {want:g}"

# %% guarded
from allranks.guard import Guard


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch), -batch, reduction="sum")


watch = Guard(ddp)
watch.preflight(loss_of, x)
