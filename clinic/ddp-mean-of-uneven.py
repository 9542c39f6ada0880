r"""Each rank averages over a different number of samples.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: gradient \S+ instead of
guard: samples by rank: \[1, 3\].*mean of means

You see: the same data gives a different loss curve with two ranks than with one.
Samples in short batches count for more than the rest.

Cause: each rank divides by its own count, then DDP divides by the number of ranks. A
mean of means is the mean only if all counts are equal. Padded tokens, masked labels and
the last batch of an epoch make them unequal.

Cure: divide the sum by the count of all ranks, and multiply by the number of ranks to
undo DDP's division.

Next time: count what the loss averages over (tokens, not sentences), and all_reduce the
smallest and the largest count. If they differ, the mean is wrong.

Links: https://github.com/huggingface/transformers/issues/34242 (tokens are averaged per device, not over all)
https://github.com/pytorch/torchtitan/pull/2206 (normalizes by the valid tokens of all ranks)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

x = torch.tensor([[10.0]] if rank == 0 else [[30.0], [40.0], [60.0]])
model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
ddp = DistributedDataParallel(model)

# %% broken
loss = ddp(x).sum() / len(x)
loss.backward()
print(f"samples {len(x)}, gradient {model.weight.grad.item():.1f}")

# %% fixed
count = torch.tensor(len(x))
dist.all_reduce(count)
loss = ddp(x).sum() / count * world_size
loss.backward()
print(f"samples {len(x)}, gradient {model.weight.grad.item():.1f}")

# %% invariant: the gradient is the mean over all samples of all ranks
everything = torch.tensor([x.sum(), len(x)])
dist.all_reduce(everything)
got, want = model.weight.grad.item(), (everything[0] / everything[1]).item()
assert abs(got - want) < 1e-4, f"gradient {got:.1f} instead of {want:.1f}"

# %% guarded
from allranks.guard import Guard

watch = Guard(ddp)
watch.preflight(lambda model, union: model(union).sum() / len(union), x)
