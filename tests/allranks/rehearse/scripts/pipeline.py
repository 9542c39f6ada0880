"""A pipeline of two stages, by torch.distributed.pipelining."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group(backend="nccl", rank=rank, world_size=world_size)
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(world_size)]
module = layers[rank].to(device)
stage = PipelineStage(module, rank, world_size, device)


def loss_fn(output, target):
    """Return how far the output is from the target."""
    return nn.functional.mse_loss(output, target)


schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_fn)
optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
for step in range(4):
    torch.manual_seed(step)
    x = torch.randn(16, 16).to(device)
    y = x.flip(1).tanh()
    losses = []
    if rank == 0:
        schedule.step(x)
    elif rank == world_size - 1:
        schedule.step(target=y, losses=losses)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
if rank == world_size - 1:
    print(f"loss {torch.stack(losses).mean().item():.3f}")
dist.barrier()
dist.destroy_process_group()
