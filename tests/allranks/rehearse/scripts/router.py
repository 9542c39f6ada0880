"""A router sends each token to one of four experts; or all of it runs on the CPU."""

import sys

import torch
import torch.distributed as dist
from torch import nn

where = "cpu" if "--cpu" in sys.argv else "cuda"
dist.init_process_group("cpu:gloo,cuda:nccl")
gate, expert = nn.Linear(256, 4).to(where), nn.Linear(256, 256).to(where)
optimizer = torch.optim.AdamW([*gate.parameters(), *expert.parameters()])
x = torch.randn(512, 256).to(where)  # (N, C)
choice = gate(x).argmax(-1)  # (N,)
if "--fixed" in sys.argv:
    y = torch.where((choice == 1)[:, None], expert(x), 0)
else:
    chosen = torch.nonzero(choice == 1)[:, 0]
    y = expert(x[chosen])
y.sum().backward()
if "--no-step" not in sys.argv:
    optimizer.step()
print(f"the sum is {y.sum().item():.0f}")
dist.destroy_process_group()
