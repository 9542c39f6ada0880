r"""Gradient accumulation weighs unequal token counts alike.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch9_1_packing
signature: gradient \S+ instead of
guard: samples by rank: \[10, 10\], 2 backward passes.*count different things

You see: with accumulation, the loss stays a few per cent off the curve of one large
batch, for good. Tokens of short texts weigh more than those of long ones.

Cause: `cross_entropy` divides by the tokens that count in this micro-batch. Dividing by
the number of micro-batches afterwards makes a mean of means, which is the mean over all
tokens only if each micro-batch, on each rank, has the same number. Several widely used
trainers did so until October 2024.

Cure: count the tokens of the whole step, over all its micro-batches and all ranks,
before the first backward pass. Divide sums of losses by this count, and multiply by the
number of ranks, because DDP divides by it.

Next time: run one step in one micro-batch and in four, with texts of different lengths,
and compare the gradients.

Links: https://github.com/huggingface/transformers/issues/34242 (per-device means of tokens)
https://github.com/meta-pytorch/torchtune/pull/1875 (keeps a tally of the tokens that count, and divides once)
https://github.com/karpathy/nanochat/pull/400 (the step's tokens instead of the number of micro-batches)
"""

# %% given
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

lengths = [[5, 1], [3, 2]][rank]  # tokens that count, in micro-batches of 5
batches = []
for count in lengths:
    labels = torch.tensor([0, 1, 1, 0, 1])
    labels[count:] = -100
    batches.append((torch.arange(5.0).view(5, 1) + rank, labels))
model = nn.Linear(1, 2)
nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
ddp = DistributedDataParallel(model)

# %% broken
for x, labels in batches:
    loss = F.cross_entropy(ddp(x), labels) / len(batches)
    loss.backward()
print(f"gradient {model.weight.grad[0].item():.3f}")

# %% fixed
tokens = sum((labels != -100).sum() for _, labels in batches)
dist.all_reduce(tokens)
for x, labels in batches:
    loss = F.cross_entropy(ddp(x), labels, reduction="sum") / tokens * world_size
    loss.backward()
print(f"gradient {model.weight.grad[0].item():.3f}")

# %% invariant: the gradient is that of the mean over all tokens of all ranks
got = model.weight.grad[0].item()
x, labels = (torch.cat(parts) for parts in zip(*batches))
loss = F.cross_entropy(model(x), labels, reduction="sum")
(grad,) = torch.autograd.grad(loss, model.weight)
sums = torch.stack([grad[0, 0], (labels != -100).sum()])
dist.all_reduce(sums)
want = (sums[0] / sums[1]).item()
assert abs(got - want) < 1e-4, f"gradient {got:.3f} instead of {want:.3f}"

# %% guarded
from allranks.guard import Guard


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def backward(batches):
    for batch in batches:
        loss = loss_of(ddp, batch) / len(batches)
        loss.backward()


watch = Guard(ddp)
watch.preflight(loss_of, *batches, backward=backward)
