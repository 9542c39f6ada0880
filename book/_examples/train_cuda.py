"""A training script as it stands in many repositories: for CUDA and NCCL only."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.manual_seed(0)

inputs = torch.randn(512, 64)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, args.batch_size, sampler=sampler, pin_memory=True)

net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
model = DDP(net, device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")

for epoch in range(args.epochs):
    for x, y in loader:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.3f}")
        torch.save(model.module.state_dict(), "net.pt")

dist.destroy_process_group()
