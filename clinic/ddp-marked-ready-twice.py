r"""Expected to mark a variable ready only once: gradient checkpointing.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: RuntimeError: Expected to mark a variable ready only once

You see: as soon as gradient checkpointing is switched on, the first `backward` fails.

Cause: a reentrant checkpoint runs a backward pass of its own inside the outer one. If a
layer is checkpointed twice, its gradients are ready twice, but DDP expects each
parameter to report once. The same happens with `find_unused_parameters=True`, which
sees the graph only from outside and therefore takes checkpointed layers for unused.

Cure: call `checkpoint(..., use_reentrant=False)`. In Hugging Face's Trainer, set
`gradient_checkpointing_kwargs={"use_reentrant": False}`.

Next time: the message names a parameter, which is the last one of the layer that is
used twice.

Links: https://github.com/huggingface/accelerate/issues/389 (solved by use_reentrant=False)
https://github.com/microsoft/FocalNet/issues/4 (checkpointing works on one GPU, fails under DDP)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.block = nn.Linear(1, 1), nn.Linear(1, 1)
        self.reentrant = reentrant

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return x


# %% broken
ddp = DistributedDataParallel(Net(reentrant=True))
ddp(torch.ones(2, 1)).mean().backward()
print("step 0")

# %% fixed
ddp = DistributedDataParallel(Net(reentrant=False))
ddp(torch.ones(2, 1)).mean().backward()
print("step 0")

# %% signs
# mark a variable ready only once|multiple reentrant backward passes
# has been marked as ready twice
# Gradient computed twice for this partition
