r"""Appears not to match sizes: a layer's size differs between ranks.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: rank 1[\s\S]*appears not to match sizes of the same param in process 0

You see: rank 1 fails in the constructor of DDP. Rank 0 does not fail there, but waits,
or complains later that its connection was closed.

Cause: each rank took the size of a layer from its own share of the data, such as the
number of classes, the vocabulary or the longest sentence in it. DDP compares the shapes
with rank 0's, and they differ.

Cure: agree on sizes before building the model, by an `all_reduce` with `MAX` or,
better, by a number in the configuration.

Next time: read the other rank's traceback first. In torchrun's summary it is the first
observed failure.

Links: https://github.com/huggingface/transformers/issues/16417 (sizes of params[0] do not match process 0)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

labels = [0, 1, 2] if rank == 0 else [0, 3, 4]

# %% broken
num_classes = max(labels) + 1
ddp = DistributedDataParallel(nn.Linear(4, num_classes))
print(num_classes, "classes")

# %% fixed
largest = torch.tensor(max(labels), device=device)
dist.all_reduce(largest, op=dist.ReduceOp.MAX)
num_classes = largest.item() + 1
ddp = DistributedDataParallel(nn.Linear(4, num_classes))
print(num_classes, "classes")

# %% signs
# appears not to match sizes of the same param in process
