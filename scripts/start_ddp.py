"""Start here - Train the same network on several ranks.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/start_ddp.py
"""

import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
x, y = map(torch.as_tensor, load_digits(return_X_y=True))
data = TensorDataset(x.float() / 16, y)  # 1797 images of 64 pixels
net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
net = DDP(net.to(device))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
sampler = DistributedSampler(data, drop_last=True)
loader = DataLoader(data, 128 // world_size, sampler=sampler, drop_last=True)

for epoch in range(5):
    start = time.perf_counter()
    sampler.set_epoch(epoch)
    for x, y in loader:  # (128 / W, 64), (128 / W,)
        loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss := loss.detach(), dist.ReduceOp.AVG)
    rate = len(loader) * 128 / (time.perf_counter() - start)
    if rank == 0:
        print(f"{epoch=} loss={loss.item():.4f} {rate:.0f} samples/s")

if rank == 0:
    torch.save(net.module.state_dict(), "start.pt")
dist.destroy_process_group()
