r"""Module must have its parameters and buffers on device cuda:0.

class: DataParallel
symptom: crash
runs on: 2 virtual GPUs
chapter: ch2_data_parallel
signature: module must have its parameters and buffers on device

You see: `module must have its parameters and buffers on device cuda:0 (device_ids[0])
but found one of them on device: cpu`, in the first forward.

Cause: the wrapper copies the module from the first of its devices to the others. It
does not move the module to the first one itself, so a module that is still on the CPU,
a buffer made later, or a model on `cuda:1` under the default device ids is not where
the wrapper looks.

Cure: move the model to `device_ids[0]` before you call it. To leave out GPU 0 pass
`device_ids=[1, 2]` and move the model to `cuda:1`.

Next time: `{p.device for p in model.parameters()}`, and the same for `model.buffers()`.

Links: https://github.com/replicate/cog/issues/971 (the model was on cuda:1)
https://github.com/JDAI-CV/FaceX-Zoo/issues/68 (the model was on the CPU)
https://github.com/google-research/big_transfer/issues/73 (training on cuda:1 with the default ids)
"""

# %% given
import torch
from torch import nn

# %% broken
net = nn.Linear(2, 1).to("cuda:1")
parallel = nn.DataParallel(net, device_ids=[0, 1])
print("output:", parallel(torch.ones(8, 2)).shape)

# %% fixed
net = nn.Linear(2, 1).to("cuda:0")
parallel = nn.DataParallel(net, device_ids=[0, 1])
print("output:", parallel(torch.ones(8, 2)).shape)

# %% signs
# module must have its parameters and buffers on device
# all tensors must be on devices\[0\]
# (?:Broadcast|Gather) function not implemented for CPU tensors
