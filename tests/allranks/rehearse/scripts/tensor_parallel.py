"""Tensor and sequence parallelism of a feed-forward block, on a mesh of GPUs."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

world_size = int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh("cuda", (world_size,), mesh_dim_names=("tp",))
rank = mesh.get_local_rank()
assert torch.cuda.current_device() == int(os.environ["LOCAL_RANK"])


class Net(nn.Module):
    """A feed-forward block and a head of 16 classes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.w1, self.w2 = nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 16)

    def forward(self, x):
        x = self.norm(x)
        return self.head(x + self.w2(torch.relu(self.w1(x))))


torch.manual_seed(0)
model = Net().to("cuda")
plan = {
    "norm": SequenceParallel(),
    "w1": ColwiseParallel(input_layouts=Shard(1)),
    "w2": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    "head": ColwiseParallel(
        input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
    ),
}
model = parallelize_module(
    model,
    mesh["tp"],
    {
        "": PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)
        ),
        **plan,
    },
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
for step in range(6):
    torch.manual_seed(step)  # one batch for all: they hold parts of one model
    x = torch.randn(4, 8, 32, device="cuda")
    target = x[..., :16].argmax(-1)
    with loss_parallel():
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step in (0, 5):
        print(f"step {step}: loss {loss.full_tensor().item():.3f}")
    elif step in (0, 5):
        loss.full_tensor()
dist.destroy_process_group()
