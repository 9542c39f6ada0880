r"""GPU 0 is full: every rank loads its checkpoint there.

class: checkpoint
symptom: slow
runs on: quoted
chapter: ch3_save_load

You see: `nvidia-smi` lists all processes on GPU 0, each with a few hundred megabytes or
a whole checkpoint. GPU 0 is full long before the other GPUs, and rank 0 dies with `CUDA
out of memory`, often at the moment of resuming.

Cause: rank 0 saved the file, so the file says `cuda:0` for each tensor. On every rank,
`torch.load` puts the tensors there, and each process gets a CUDA context on GPU 0 that
it keeps until it ends.

Cure: load to the CPU and let `load_state_dict` copy onto the rank's own GPU. Call
`torch.accelerator.set_device_index(local_rank)` before anything that touches a GPU.

Next time: look at `nvidia-smi` during training: one process per GPU is right. If the
extra entries appear at the start, and not when resuming, the device was not set.

Links: https://github.com/pytorch/pytorch/issues/23138 (resuming adds processes on GPU 0, with the listing)
https://github.com/pytorch/examples/issues/1078 (GPU 0 unbalanced; cured by map_location)
https://github.com/NVIDIA/apex/issues/222 (a gigabyte of each rank on GPU 0)
"""

# %% broken
model = nn.Linear(1024, 1024).to(device)
checkpoint = torch.load("last.pt")
model.load_state_dict(checkpoint["model"])

# %% fixed
model = nn.Linear(1024, 1024).to(device)
checkpoint = torch.load("last.pt", map_location="cpu")
model.load_state_dict(checkpoint["model"])

# %% quoted
# GPU   PID Type Process name         Usage
# =========================================
#   0 62250  C   /usr/bin/python3.6 4903MiB
#   0 62251  C   /usr/bin/python3.6  725MiB
#   0 62252  C   /usr/bin/python3.6  725MiB
#   0 62253  C   /usr/bin/python3.6  725MiB

# %% signs
# maybe: \| +0 +(?:N/A +N/A +)?\d+ +C [^|]*MiB \| \| +0 +(?:N/A +N/A +)?\d+ +C && MiB \| \| +[1-9] +(?:N/A +N/A +)?\d+ +C
