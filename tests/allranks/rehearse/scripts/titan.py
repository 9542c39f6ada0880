"""A Llama as torchtitan trains it: FSDP2 and tensor parallelism on one mesh."""

import argparse
import json
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F

parser = argparse.ArgumentParser()
for name, default in {
    "dim": 64,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "vocab": 256,
    "seq": 32,
    "batch": 2,
    "tp": 2,
    "steps": 4,
}.items():
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--trace", help="write what torch itself counted to this file")
args = parser.parse_args()


def rotate(x, freqs):
    """Turn pairs of channels by their position."""
    cos, sin = freqs.cos()[:, None], freqs.sin()[:, None]  # (S, 1, D / 2)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).type_as(x)


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self):
        super().__init__()
        self.head_dim = args.dim // args.heads
        self.wq = nn.Linear(args.dim, args.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.heads * self.head_dim, args.dim, bias=False)

    def forward(self, x, freqs):
        B, S, _ = x.shape
        q, k, v = (
            w(x).view(B, S, -1, self.head_dim) for w in (self.wq, self.wk, self.wv)
        )
        q, k = rotate(q, freqs), rotate(k, freqs)
        repeats = q.shape[2] // k.shape[2]
        k, v = (t.repeat_interleave(repeats, dim=2) for t in (k, v))
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.wo(y.transpose(1, 2).reshape(B, S, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(args.dim, 4 * args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, 4 * args.dim, bias=False)
        self.w2 = nn.Linear(4 * args.dim, args.dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """A layer of the transformer."""

    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(args.dim), nn.RMSNorm(args.dim)
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x, freqs):
        x = x + self.attention(self.attention_norm(x), freqs)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Embedding, layers and head."""

    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(args.vocab, args.dim)
        self.register_buffer("freqs", self.angles(), persistent=False)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(args.layers)})
        self.norm = nn.RMSNorm(args.dim)
        self.output = nn.Linear(args.dim, args.vocab, bias=False)

    @staticmethod
    def angles():
        half = args.dim // args.heads // 2
        speeds = 1 / 10000 ** (torch.arange(half) / half)
        return torch.outer(torch.arange(args.seq), speeds)

    def init_weights(self):
        with torch.device(self.freqs.device):
            self.freqs = self.angles()
        for module in self.modules():
            if isinstance(module, nn.RMSNorm):
                module.reset_parameters()
            elif isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.trunc_normal_(module.weight, std=0.02)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, self.freqs)
        return self.output(self.norm(x))


local_rank, world_size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
if torch.cuda.is_available():
    device = torch.device(f"cuda:{local_rank}")
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl")
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
mesh = init_device_mesh(
    device.type, (world_size // args.tp, args.tp), mesh_dim_names=("dp", "tp")
)
dp, tp = mesh["dp"], mesh["tp"]
dist.barrier()
torch.manual_seed(0)
with torch.device("meta"):
    model = Llama()
if tp.size() > 1:
    parallelize_module(
        model,
        tp,
        {
            "tok_embeddings": RowwiseParallel(
                input_layouts=Replicate(), output_layouts=Shard(1)
            ),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    )
    for block in model.layers.values():
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None),
                desired_input_layouts=(Replicate(), None),
            ),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w3": ColwiseParallel(),
        }
        parallelize_module(block, tp, plan)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for name, block in model.layers.items():
    model.layers[name] = checkpoint_wrapper(block)
    fully_shard(model.layers[name], mesh=dp, mp_policy=policy)
fully_shard(model, mesh=dp, mp_policy=policy)
model.to_empty(device=device)
with torch.no_grad():
    model.init_weights()
model.train()
num_params = sum(p.numel() for p in model.parameters())
optimizer = torch.optim.AdamW(
    model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True
)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min(1.0, (s + 1) / 2)
)
generator = torch.Generator().manual_seed(dp.get_local_rank())
for step in range(args.steps):
    batch = torch.randint(args.vocab, (args.batch, args.seq + 1), generator=generator)
    tokens, labels = batch[:, :-1].to(device), batch[:, 1:].to(device)
    optimizer.zero_grad(set_to_none=True)
    with loss_parallel():
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        del logits
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    optimizer.step()
    scheduler.step()
    whole = loss.detach()
    whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
    dist.all_reduce(whole, op=dist.ReduceOp.AVG, group=dp.get_group())
    value = whole.item()
    if math.isnan(value):
        raise RuntimeError(f"loss is {value}")
    if dist.get_rank() == 0:
        print(f"step {step}: loss {value:.3f}, norm {norm.item():.2f}, {num_params:,}")
if args.trace and dist.get_rank() == 0:
    # What torch's own flight recorder saw, and the bytes of what this rank has.
    seen = json.loads(_distributed_c10d._dump_fr_trace_json(includeCollectives=True))
    local = [p.to_local() for p in model.parameters()]
    states = [s for state in optimizer.state.values() for s in state.values()]
    states = [s.to_local() if isinstance(s, DTensor) else s for s in states]
    held = {"parameters": local, "optimizer": states}
    held["gradients"] = [p.grad.to_local() for p in model.parameters()]
    # FSDP2 puts the gradients of a unit into one storage.
    memory = {k: [t.untyped_storage() for t in all_] for k, all_ in held.items()}
    sizes = {k: {s.data_ptr(): s.nbytes() for s in v} for k, v in memory.items()}
    Path(args.trace).write_text(json.dumps({"calls": seen["entries"], "held": sizes}))
dist.destroy_process_group()
