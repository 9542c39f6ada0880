r"""StopIteration in replica 0: a DataParallel replica has no parameters.

class: DataParallel
symptom: crash
runs on: 2 virtual GPUs
chapter: ch2_data_parallel
signature: StopIteration

You see: `StopIteration: Caught StopIteration in replica 0 on device 0`, and below it
the replica's traceback. It ends in a bare `StopIteration`, at a line such as
`next(self.parameters()).device`. Old models have failed like this since torch 1.5.

Cause: a replica's weights are plain tensors, results of the copy from the first device;
gradients flow back through it. They are attributes of the replica but not Parameters,
so `parameters()` is empty.

Cure: ask a tensor: the input, or one weight by its name. DDP has no replicas.

Next time: in forward, avoid everything that goes through `self.parameters()`, including
`self.device` and `self.dtype` of library classes, and `nn.ParameterList`.

Links: https://github.com/pytorch/pytorch/issues/40457 (the tutorial's model, torch 1.5)
https://github.com/kimiyoung/transformer-xl/issues/123 (a ParameterList is empty in replicas)
https://github.com/lucidrains/BS-RoFormer/issues/25 (the model's property device)
"""

# %% given
import torch
from torch import nn


# %% broken
class Net(nn.Linear):
    def forward(self, x):
        device = next(self.parameters()).device
        return super().forward(x) + torch.ones(1, device=device)


parallel = nn.DataParallel(Net(2, 1).to("cuda:0"), device_ids=[0, 1])
print("output:", parallel(torch.ones(8, 2)).shape)


# %% fixed
class Net(nn.Linear):
    def forward(self, x):
        device = self.weight.device
        return super().forward(x) + torch.ones(1, device=device)


parallel = nn.DataParallel(Net(2, 1).to("cuda:0"), device_ids=[0, 1])
print("output:", parallel(torch.ones(8, 2)).shape)

# %% signs
# maybe: next\(self[\w.]*\.parameters\(\)
# Caught StopIteration in replica
# with: StopIteration
