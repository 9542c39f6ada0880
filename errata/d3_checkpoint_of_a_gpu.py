"""A checkpoint from a GPU, loaded without one.

runs on: one process
outcome: raises
chapter: ch3_save_load

A file remembers on which device each tensor was. On a machine without that device,
`torch.load` stops. (We have no GPU to save from, so the first lines write "cuda:0"
beside a CPU tensor. The error is the real one.) `map_location` says where to put them
instead.
"""

# %% given
import torch

serialization = torch.serialization
serialization.register_package(1, lambda storage: "cuda:0", lambda *_: None)
torch.save({"weight": torch.ones(2)}, "gpu.pt")

# %% wrong
torch.load("gpu.pt")

# %% right
print(torch.load("gpu.pt", map_location="cpu"))
