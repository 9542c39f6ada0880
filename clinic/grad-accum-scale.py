r"""An accumulated loss is not divided by the number of micro-batches.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: gradient \S+ instead of
guard: 4 times the gradient of one process on the union

You see: training with four micro-batches is unstable at the learning rate that was good
for one large batch. Clipping hides it, and so does Adam, which divides the factor out.

Cause: `backward` adds to `.grad`, so four means give four times the mean. DDP divides
by the number of ranks, not by the number of backward passes.

Cure: divide each loss by the number of micro-batches. If they hold different numbers of
samples, divide sums by the count of all of them instead.

Next time: compare the gradient of one accumulated step with the gradient of one
backward pass over the same samples in one batch.

Links: https://github.com/karpathy/nanoGPT/issues/206 (loss was not divided by the accumulation steps)
https://github.com/huggingface/transformers/pull/34191 (accumulation that differs from one large batch)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

batches = torch.arange(1.0, 9.0).view(4, 2, 1) + 10 * rank
model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
ddp = DistributedDataParallel(model)

# %% broken
for x in batches:
    loss = ddp(x).mean()
    loss.backward()
print(f"gradient {model.weight.grad.item():g}")

# %% fixed
for x in batches:
    loss = ddp(x).mean() / len(batches)
    loss.backward()
print(f"gradient {model.weight.grad.item():g}")

# %% invariant: the gradient is that of one pass over all samples
mean = batches.mean()
dist.all_reduce(mean)
got, want = model.weight.grad.item(), mean.item() / world_size
assert abs(got - want) < 1e-4, f"gradient {got:g} instead of {want:g}"

# %% guarded
from allranks.guard import Guard


def backward(batches):
    for x in batches:
        loss = ddp(x).mean()
        loss.backward()


watch = Guard(ddp)
watch.preflight(lambda model, union: model(union).mean(), *batches, backward=backward)
