"""Settings that nobody defines, tensors on no GPU.

runs on: one process
outcome: raises
chapter: ch5_ddp

`batch_size`, `num_workers` and the optimizer appear out of nowhere. And "the loader
should return GPU tensors" has it backwards: a loader returns CPU tensors (in pinned
memory, on a machine with a GPU, so that the copy is fast), and the loop moves them.
"""

# %% given
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.arange(8.0))

# %% wrong
loader = DataLoader(data, batch_size=batch_size)

# %% right
device = torch.device("cpu")  # or the GPU
loader = DataLoader(data, batch_size=4)
for (x,) in loader:
    print("from the loader:", x.device, "- in the loop:", x.to(device).device)
