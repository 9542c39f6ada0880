"""Labels on the first GPU, output on the second.

runs on: 2 virtual GPUs
outcome: raises
hardware: GPU
chapter: ch6_model_parallel

The model's second part, and so its output, is on the second device. The labels go to
"cuda", which means device 0. Send the labels to the output's device, and the line stays
right when you move the split.
"""

# %% given
import torch
from torch import nn

first, second = nn.Linear(4, 4).to("cuda:0"), nn.Linear(4, 2).to("cuda:1")
x, labels = torch.ones(3, 4), torch.zeros(3, 2)
output = second(first(x.to("cuda:0")).to("cuda:1"))

# %% wrong
nn.functional.mse_loss(output, labels.to("cuda"))

# %% right
loss = nn.functional.mse_loss(output, labels.to(output.device))
print("loss on", loss.device)
