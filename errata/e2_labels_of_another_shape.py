"""Labels of another shape.

runs on: one process
outcome: warns
chapter: ch5_ddp

The demo compares outputs of shape (3, 5) with labels of shape (3, 10), which is an
error. What you may try next is worse: labels of shape (3, 1) are stretched to fit, with
only a warning, and the loss is a different number.
"""

# %% given
import torch
from torch.nn.functional import mse_loss

outputs = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])

# %% wrong
try:
    mse_loss(outputs, torch.zeros(2, 6))
except RuntimeError as error:
    print(error)
labels = torch.tensor([[1.0], [3.0]])  # the right class of each sample
print("loss", mse_loss(outputs, labels).item())

# %% right
labels = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])  # the same, one-hot
assert labels.shape == outputs.shape
print("loss", mse_loss(outputs, labels).item())
