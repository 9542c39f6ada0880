"""Train with FSDP2: a whole job, into which you can put your model and your data."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

gpu = torch.accelerator.current_accelerator(check_available=True)
on_gpu = gpu and gpu.type != "mps"  # no backend works with a Mac's GPU
device = gpu if on_gpu else torch.device("cpu")
dist.init_process_group()
mesh = init_device_mesh(device.type, (dist.get_world_size(),))  # one row; picks the GPU
policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)

torch.manual_seed(0)  # equal weights on all ranks
net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))  # on the CPU
for block in net:  # each becomes a unit, and moves to the mesh's device
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(net, mesh=mesh, mp_policy=policy)  # what is in no unit yet
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)  # after, not before

torch.manual_seed(1 + dist.get_rank())  # different samples on each rank
for step in range(40):
    x = torch.randn(128, 64, device=device)
    loss = (net(x) - x).square().mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0).full_tensor()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0 and step % 13 == 0:
        print(f"{step=} loss={loss.item():.2f} norm={norm.item():.2f}")

model, optim = get_state_dict(net, optimizer)  # on all ranks
dcp.save({"model": model, "optim": optim}, checkpoint_id="checkpoint")
dist.destroy_process_group()
