"""Average gradients by hand, on the host, in a group that is gone before the end."""

import os

import torch
import torch.distributed as dist
from torch import nn

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Linear(8, 1).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    net(torch.randn(4, 8).cuda()).square().mean().backward()
    for parameter in net.parameters():
        mean = parameter.grad.cpu() / dist.get_world_size()
        dist.all_reduce(mean)
        parameter.grad = mean.cuda()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
