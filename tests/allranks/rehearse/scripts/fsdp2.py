"""FSDP2 with mixed precision, and a sharded checkpoint that is read back."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
device = torch.device(f"cuda:{local_rank}")
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("shard",))
torch.manual_seed(0)
with torch.device("meta"):
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.layers:
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
torch.manual_seed(rank)  # each rank draws its own part
with torch.no_grad():
    for name, parameter in model.named_parameters():
        local = parameter.to_local()
        local.fill_(1.0) if "norm" in name else local.normal_(0, 0.05)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(4):
    torch.manual_seed(10 * step + rank)
    x = torch.randn(4, 8, 32, device=device)
    loss = (model(x).float() - x).square().mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
total = torch.stack(losses)
dist.all_reduce(total, op=dist.ReduceOp.AVG)

folder = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folder, device=device)
weights, state = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
before = [p.to_local().clone() for p in model.parameters()]
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
for parameter, old in zip(model.parameters(), before, strict=True):
    assert torch.equal(parameter.to_local(), old)
if rank == 0:
    print(
        f"loss {total[0].item():.3f} to {total[-1].item():.3f}, norm {norm.item():.2f}"
    )
dist.destroy_process_group()
