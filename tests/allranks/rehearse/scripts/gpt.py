"""A small GPT as nanoGPT trains it: compiled, in bfloat16, with accumulation."""

import math
import os
from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

block_size, batch_size, accumulation, steps = 16, 4, 4, 6
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    device = f"cuda:{local_rank}"
    torch.cuda.set_device(device)
    assert accumulation % world_size == 0
    accumulation //= world_size
else:
    rank, world_size, device = 0, 1, "cuda"
torch.manual_seed(1337 + rank)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
device_type = "cuda" if "cuda" in device else "cpu"
dtype = "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
ptdtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = (
    nullcontext()
    if device_type == "cpu"
    else torch.amp.autocast(device_type=device_type, dtype=ptdtype)
)
text = torch.arange(4096) % 31


def get_batch():
    """Return inputs and targets of a batch, on the GPU."""
    starts = torch.randint(len(text) - block_size - 1, (batch_size,))
    x = torch.stack([text[i : i + block_size] for i in starts])
    y = torch.stack([text[i + 1 : i + 1 + block_size] for i in starts])
    return (
        x.pin_memory().to(device, non_blocking=True),
        y.pin_memory().to(device, non_blocking=True),
    )


class Block(nn.Module):
    """Attention over the past, then a small net."""

    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.heads = heads

    def forward(self, x):
        B, T, C = x.size()
        parts = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (
            p.view(B, T, self.heads, C // self.heads).transpose(1, 2) for p in parts
        )
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Two blocks, whose head shares its weights with the embedding."""

    def __init__(self, vocabulary=32, width=32, heads=4):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(block_size, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(2)])
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
        )


model = GPT().to(device)
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=3e-3,
    betas=(0.9, 0.95),
    fused=True,
)
model = torch.compile(model)
if ddp:
    model = DDP(model, device_ids=[local_rank])
x, y = get_batch()
for step in range(steps):
    for group in optimizer.param_groups:
        group["lr"] = 3e-3 * 0.5 * (1 + math.cos(math.pi * step / steps))
    for micro_step in range(accumulation):
        if ddp:
            model.require_backward_grad_sync = micro_step == accumulation - 1
        with ctx:
            loss = model(x, y) / accumulation
        x, y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
torch.cuda.synchronize()
if rank == 0:
    used = torch.cuda.max_memory_allocated() / 2**20
    print(f"loss {loss.item() * accumulation:.3f}, at most {used:.1f} MiB")
if ddp:
    destroy_process_group()
