r"""Loss is higher with more GPUs: the learning rate wasn't scaled.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch10_1_large_batches
signature: loss \S+ after as many epochs as
beyond: Every rank computes what one process would, and no comparison tells how low the loss should get.

You see: an epoch is faster on more GPUs, and the loss after it is higher. More epochs
are needed, which eats up the gain.

Cause: with the same batch on each rank, W ranks make one step where one process makes
W. Each step follows the mean over a batch that is W times larger, so it is less noisy,
but not longer.

Cure: for SGD multiply the learning rate by the number of ranks, and warm it up over the
first epochs. For Adam the square root of that factor is the usual start. Or divide the
batch of each rank by the number of ranks: then nothing changes.

Next time: plot the loss over samples, not over steps or seconds, for one rank and for
all.

Links: https://github.com/open-mmlab/mmdetection/issues/815 (learning rate must follow the number of GPUs)
https://github.com/facebookresearch/detr/issues/48 (unscaled: worse at the same epoch; Adam needs less)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

samples = torch.randn(64, 1, generator=torch.Generator().manual_seed(0))


def train(model, rate, shard, epochs=2):
    nn.init.zeros_(next(model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for x in shard.split(4) * epochs:
        optimizer.zero_grad()
        (model(x) - 3 * x).square().mean().backward()
        optimizer.step()
    return (model(samples) - 3 * samples).square().mean().item()


ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
shard = samples[rank::world_size]

# %% broken
loss = train(ddp, 0.02, shard)
print(f"loss {loss:.2f} after {2 * len(shard) // 4} steps")

# %% fixed
loss = train(ddp, 0.02 * world_size, shard)
print(f"loss {loss:.2f} after {2 * len(shard) // 4} steps")

# %% invariant: two ranks get as far in two epochs as one process does
alone = train(nn.Linear(1, 1, bias=False), 0.02, samples)
words = f"loss {loss:.2f} after as many epochs as one process needs for {alone:.2f}"
assert loss < 1.2 * alone, words
