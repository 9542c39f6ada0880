r"""Expected all tensors to be on the same device.

class: model parallel
symptom: crash
runs on: 2 virtual GPUs
chapter: ch6_model_parallel
signature: Expected all tensors to be on the same device, but found at least two devices

You see: `Expected all tensors to be on the same device, but found at least two devices,
cuda:0 and cuda:1!`, in a layer, in the loss, or at a plain `+`.

Cause: an operator does not move its inputs to another GPU. So where a model is cut, you
have to move the activations, and also masks, position tables and the labels. `"cuda"`
means the current device, mostly 0.

Cure: at each boundary `x = x.to(next_layer.weight.device)`, and labels to
`output.device`. Then the line stays right when the cut moves.

Next time: the end of the message names the argument (`mat2`, `weight`, `index`) that is
elsewhere. Print the device of each operand above the line that fails.

Links: https://github.com/yuanzhoulvpi2017/zero_nlp/issues/110 (a model that a device map cuts for five GPUs)
"""

# %% given
import torch
from torch import nn

first, second = nn.Linear(4, 4).to("cuda:0"), nn.Linear(4, 2).to("cuda:1")
x = torch.ones(3, 4, device="cuda:0")

# %% broken
hidden = first(x)
output = second(hidden)
print("output on", output.device)

# %% fixed
hidden = first(x)
output = second(hidden.to(second.weight.device))
print("output on", output.device)

# %% signs
# all tensors to be on the same device
# [Tt]ensor for .* is on .*, (?:but )?expected (?:it|them) to be on
# Expected object of (?:device|backend)(?: type)? \w+ but got (?:device|backend)(?: type)? \w+
# located on different GPUs|tensors are on different GPUs
# Input type \(torch\.cuda\.\w+\) and weight type \(torch\.\w+\) should be the same
# Expected object of type torch\.cuda\.\w+ but found type torch\.\w+
# tensors are not at the same device
# indices should be either on cpu or on the same device
# Input type \(torch\.\w+\) and weight type \(torch\.cuda\.
# Expected object of type torch\.\w+ but found type torch\.cuda\.
# Input type \((?:cpu|cuda)\) and weight type|should be a MKLDNN tensor and weight is a dense tensor
# to have the same device as tensor for argument
# expected both inputs to be on same device
# xpected device \S+ (?:and dtype \w+ )?but got device|found two different devices
# nput, output and indices must be on the current
# maybe: when checking arguments? (?:for|in method)
