"""A Llama, cut by FSDP2 along an axis of a mesh, and by tensor parallelism too."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--dim", type=int, default=4096)
parser.add_argument("--layers", type=int, default=32)
parser.add_argument("--tp", type=int, default=8)
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()
vocabulary, length, batch_size = 128_256, 4096, 1
plan = {
    "q": ColwiseParallel(),
    "k": ColwiseParallel(),
    "v": ColwiseParallel(),
    "o": RowwiseParallel(),
    "gate": ColwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


class Layer(nn.Module):
    """Attention, then a gated feed-forward block; ranks of tp have a part of both."""

    def __init__(self, dim: int, wide: int, small: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q, self.o = (nn.Linear(dim, dim, bias=False) for _ in "qo")
        self.k, self.v = (nn.Linear(dim, small, bias=False) for _ in "kv")
        self.gate, self.up = (nn.Linear(dim, wide, bias=False) for _ in "gu")
        self.down = nn.Linear(wide, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, S, C)
        y = self.norm1(x)
        q, k, v = (
            w(y).unflatten(-1, (-1, 128)).transpose(1, 2)  # (B, heads / tp, S, 128)
            for w in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def make_llama() -> nn.Sequential:
    """Return embedding, layers, norm and head."""
    wide, small = 7 * args.dim // 2, args.dim // 4
    layers = [Layer(args.dim, wide, small) for _ in range(args.layers)]
    first = nn.Embedding(vocabulary, args.dim)
    head = nn.Linear(args.dim, vocabulary, bias=False)
    return nn.Sequential(first, *layers, nn.RMSNorm(args.dim), head)


dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
shape = dist.get_world_size() // args.tp, args.tp
mesh = init_device_mesh("cuda", shape, mesh_dim_names=("dp", "tp"))

with torch.device("meta"):  # shapes alone: no rank ever has the whole model
    model = make_llama()
policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
for layer in model[1:-2]:
    parallelize_module(layer, mesh["tp"], plan)
    fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
model.to_empty(device=device)
for weight in model.parameters():
    nn.init.normal_(weight, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)

torch.manual_seed(mesh["dp"].get_local_rank())  # another batch for each rank of dp
for step in range(args.steps):
    tokens = torch.randint(vocabulary, (batch_size, length + 1)).to(device)
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
