"""ZeroRedundancyOptimizer, a hook that compresses, checkpoints of activations, Join."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group()
torch.cuda.manual_seed_all(0)


class Net(nn.Module):
    """Two blocks with dropout, whose activations are computed twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1))
        self.second = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1))
        self.last = nn.Linear(64, 1)

    def forward(self, x):
        x = checkpoint(self.first, x, use_reentrant=False)
        return self.last(checkpoint(self.second, x, use_reentrant=False))


with torch.device("cuda"):
    net = Net()
model = DistributedDataParallel(
    net, device_ids=[local_rank], gradient_as_bucket_view=True, static_graph=False
)
model.register_comm_hook(None, default_hooks.bf16_compress_hook)
optimizer = ZeroRedundancyOptimizer(
    model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2
)
batches = torch.randn(4 + dist.get_rank(), 8, 16, device="cuda")  # uneven
with Join([model, optimizer]):
    for x in batches:
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
optimizer.consolidate_state_dict(to=0)
if dist.get_rank() == 0:
    held = len(optimizer.state_dict()["state"])
    print(f"loss {loss.item():.3f}, {held} states, {torch.cuda.get_device_name()}")
dist.destroy_process_group()
