r"""fully_shard does not support containers that do not implement forward.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_fsdp
signature: ValueError: fully_shard does not support containers that do not implement forward: ModuleList

You see: `fully_shard does not support containers that do not implement forward`,
followed by the container.

Cause: a unit gathers its weights just before its `forward`, and drops them after it.
But a `ModuleList` or `ModuleDict` is never called. Your code calls only its members, so
the moment to gather never comes.

Cure: shard each member as a unit of its own, and then shard the model.

Next time: look for the module that is called as a whole and appears many times, such as
the transformer block. Make this module your unit.

Links: https://github.com/pytorch/pytorch/issues/167856 (the check refuses containers, even those with a forward)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


model = Stack()

# %% broken
fully_shard(model.blocks)
fully_shard(model)
print(model(torch.ones(2, 4)).shape)

# %% fixed
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
print(model(torch.ones(2, 4)).shape)

# %% signs
# fully_shard does not support containers that do not implement forward
# FSDP will not all-gather parameters for containers|does not support containers that do not implement forward
