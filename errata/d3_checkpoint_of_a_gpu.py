"""A checkpoint from a GPU, loaded without one.

runs on: one process
outcome: raises
hardware: GPU
chapter: ch3_save_load

A file remembers on which device each tensor was. On a machine without that device,
`torch.load` stops. (The first lines save from a virtual GPU, which then is gone; the
error is torch's own.) `map_location` says where to put the tensors instead.
"""

# %% given
import torch
from allranks import vgpu

with vgpu.plugged_in(1, kind="cuda"):
    torch.save({"weight": torch.ones(2, device="cuda")}, "gpu.pt")

# %% wrong
torch.load("gpu.pt")

# %% right
print(torch.load("gpu.pt", map_location="cpu"))
