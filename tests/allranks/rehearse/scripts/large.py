"""Ask a GPU that has room for more than the laptop's memory."""

import resource

import torch

held = torch.ones(8, device="cuda")
_, most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30, most))
torch.empty(70 * 2**30, dtype=torch.uint8, device="cuda")
