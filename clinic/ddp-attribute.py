r"""DistributedDataParallel object has no attribute: use ddp.module.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: 'DistributedDataParallel' object has no attribute 'num_classes'

You see: code that reads an attribute or calls a method of the model fails once the
model is wrapped.

Cause: DDP is a module of its own, with the model as its child `module`. It passes on
`forward` and nothing else.

Cure: read it as `ddp.module.num_classes`. For methods that compute the loss this is a
trap, because they bypass DDP and the gradients are not shared. Route those through
`forward`.

Next time: keep two names, `model` for the bare one and `ddp` for the wrapped one.

Links: https://github.com/Project-MONAI/GenerativeModels/issues/354 (method of an autoencoder; solved with .module)
https://github.com/VinAIResearch/XPhoneBERT/issues/7 (submodule of a wrapped generator)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_classes = 10
        self.head = nn.Linear(4, self.num_classes)


ddp = DistributedDataParallel(Net())

# %% broken
print(ddp.num_classes, "classes")

# %% fixed
print(ddp.module.num_classes, "classes")

# %% signs
# DataParallel\w*['`]? object has no attribute
# maybe: '(?:DDP|FSDP|DeepSpeedEngine|ParallelModel|PipelineModule)' object has no attribute
# maybe: DataParallel' object (?:is not (?:subscript|iter)|does not support)
