r"""The ranks counted different numbers of classes.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: rank 1[\s\S]*appears not to match sizes of the same param in process 0

You see: rank 1 fails in the constructor of DDP. Rank 0 does not: it waits there, or
complains later that its connection was closed.

Cause: the size of a layer was taken from the rank's own share of the data: its classes,
its vocabulary, the longest of its sentences. DDP compares the shapes with rank 0's.

Cure: agree on sizes before building: an `all_reduce` with `MAX`, or better a number
from the configuration.

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
