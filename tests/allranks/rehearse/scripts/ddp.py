"""Train with DDP, as on a machine with GPUs; most arguments are mistakes."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

local_rank = int(os.environ["LOCAL_RANK"])
if "no-set-device" not in sys.argv:
    torch.cuda.set_device(local_rank)
if "no-with" in sys.argv:
    torch.cuda.device(local_rank)
dist.init_process_group("nccl")
device = torch.device("cuda", local_rank)
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
net = nn.Linear(8, 1)
if "dropout" in sys.argv:
    net = nn.Sequential(nn.Dropout(), net)
model = DDP(net.to(device), device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters())
call = model.module if "module" in sys.argv else model
torch.manual_seed(local_rank if "module" in sys.argv else 0)
shares = 4 if "four-shares" in sys.argv else dist.get_world_size()
sampler = DistributedSampler(data, shares, dist.get_rank())
if "no-sampler" in sys.argv:
    sampler = None
workers = 2 if "workers" in sys.argv else 0
loader = DataLoader(data, 8, sampler is None, sampler, num_workers=workers)
for epoch in range(2):
    if sampler and "no-set-epoch" not in sys.argv:
        sampler.set_epoch(epoch)
    for x, y in loader:
        out = call(x.to(device))
        loss = (out - y.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "item" in sys.argv:
            print(loss.item())
        if "back" in sys.argv:
            kept = out.detach().cpu()
            torch.from_numpy(kept.numpy()).to(device)
    if "edit" in sys.argv and local_rank == 1:
        net[-1].weight.data.add_(1)
if "no-set-device" in sys.argv:
    torch.zeros(8, device="cuda")
if "evaluate" in sys.argv:
    few = TensorDataset(torch.arange(40.0).view(5, 8))
    for (x,) in DataLoader(few, 8, sampler=DistributedSampler(few, shuffle=False)):
        call(x.to(device))
dist.destroy_process_group()
