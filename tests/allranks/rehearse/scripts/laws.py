"""Train with DDP or by hand; words are mistakes, and "right" cures all of them."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

right, by_hand = "right" in sys.argv, "by-hand" in sys.argv
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
over_host = "gloo" in sys.argv and not right
dist.init_process_group("gloo" if over_host else "nccl")
torch.manual_seed(local_rank)


class Net(nn.Module):
    """A layer, and two buffers that never change."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("mask", torch.ones(64, 64).tril())
        self.register_buffer("turn", torch.ones(4, dtype=torch.complex64))

    def forward(self, x):
        return self.layer(x @ self.mask)


net = Net().cuda()
model = net
if by_hand:
    if right:
        for p in net.parameters():
            dist.broadcast(p.data, 0)
else:
    model = DDP(
        net,
        device_ids=[local_rank],
        broadcast_buffers="buffers" in sys.argv and not right,
    )
optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
passes = 2 if "accumulate" in sys.argv else 1
for _ in range(6):
    for number in range(passes):
        last = number == passes - 1
        if passes > 1 and right:
            model.require_backward_grad_sync = last  # what no_sync sets
        model(torch.randn(8, 64, device="cuda")).square().mean().backward()
    if by_hand:
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        dist.all_reduce(flat)
        sizes = [p.numel() for p in net.parameters()]
        for p, part in zip(net.parameters(), flat.split(sizes), strict=True):
            p.grad.copy_(part.view_as(p) / dist.get_world_size())
    optimizer.step()
    optimizer.zero_grad()
if "save" in sys.argv:
    name = "net.pt" if not right else f"net-{local_rank}.pt"
    torch.save({"net": net.state_dict()}, name)
if "keys" in sys.argv and local_rank == 0:
    torch.save((net if right else model).state_dict(), "keys.pt")
dist.destroy_process_group()
