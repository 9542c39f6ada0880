"""Train for a step, and save it in two ways, where the command line says."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

folder = Path(sys.argv[1])
dist.init_process_group()
net = nn.Linear(64, 64, device="cuda")
fully_shard(net)
optimizer = torch.optim.AdamW(net.parameters())
net(torch.ones(8, 64, device="cuda")).sum().backward()
optimizer.step()

import torch.distributed.checkpoint as dcp  # noqa: E402 (late, as in a function)

dcp.save({"net": net.state_dict()}, checkpoint_id=folder / "shards")
torch.save(net.state_dict(), folder / "net.pt")
dist.destroy_process_group()
