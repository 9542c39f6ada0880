"""A language model in the loop of the HF examples, its layers sharded with FSDP2."""

import argparse
import math
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--hidden_size", type=int, default=64)
parser.add_argument("--num_hidden_layers", type=int, default=2)
parser.add_argument("--vocab_size", type=int, default=128)
parser.add_argument("--block_size", type=int, default=16)
parser.add_argument("--per_device_train_batch_size", type=int, default=2)
parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
parser.add_argument("--num_train_epochs", type=int, default=1)
parser.add_argument("--num_samples", type=int, default=32)
args = parser.parse_args()


class Config:
    """What a model's config has."""

    initializer_range = 0.02


class Texts(Dataset):
    """Blocks of tokens."""

    def __len__(self):
        return args.num_samples

    def __getitem__(self, i):
        ids = (torch.arange(args.block_size) * (i + 1)) % args.vocab_size
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


class Layer(nn.Module):
    """A layer as HF writes it, with an explicit mask."""

    def __init__(self):
        super().__init__()
        width = args.hidden_size
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.o_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.input_layernorm = nn.LayerNorm(width)
        self.post_attention_layernorm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden, mask):
        residual, hidden = hidden, self.input_layernorm(hidden)
        shape = (*hidden.shape[:-1], 4, -1)
        q, k, v = (
            proj(hidden).view(shape).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        hidden = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        hidden = hidden.transpose(1, 2).reshape(residual.shape)
        residual = residual + self.dropout(self.o_proj(hidden))
        return residual + self.mlp(self.post_attention_layernorm(residual))


class Model(nn.Module):
    """Embeddings, layers, and a head that shares the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.embed_positions = nn.Embedding(args.block_size, args.hidden_size)
        self.layers = nn.ModuleList([Layer() for _ in range(args.num_hidden_layers)])
        self.norm = nn.LayerNorm(args.hidden_size)
        self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)
        self.apply(self._init_weights)
        self.lm_head.weight = self.embed_tokens.weight

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=Config.initializer_range)
            if getattr(module, "bias", None) is not None:
                module.bias.data.zero_()

    def forward(self, input_ids, attention_mask, labels):
        B, T = input_ids.shape
        if attention_mask is not None and 0.0 in attention_mask:
            raise ValueError("no padding here")
        causal = torch.full((T, T), -torch.inf, device=input_ids.device).triu(1)
        mask = causal[None, None].expand(B, 1, T, T)
        positions = torch.arange(T, device=input_ids.device).unsqueeze(0)
        hidden = self.embed_tokens(input_ids) + self.embed_positions(positions)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        logits = self.lm_head(self.norm(hidden)).float()
        shifted = logits[..., :-1, :].contiguous().view(-1, args.vocab_size)
        targets = labels[..., 1:].contiguous().view(-1)
        return nn.functional.cross_entropy(shifted, targets, ignore_index=-100)


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
dist.init_process_group("nccl", device_id=device)
torch.manual_seed(42)
model = Model()  # whole, on the host
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)  # moves the shards to the GPU
sampler = DistributedSampler(Texts(), shuffle=True, seed=42)
loader = DataLoader(
    Texts(),
    batch_size=args.per_device_train_batch_size,
    sampler=sampler,
    pin_memory=True,
    drop_last=True,
)
no_decay = ["bias", "norm.weight"]
groups = [
    {
        "params": [
            p for n, p in model.named_parameters() if any(x in n for x in no_decay)
        ],
        "weight_decay": 0.0,
    },
    {
        "params": [
            p for n, p in model.named_parameters() if not any(x in n for x in no_decay)
        ],
        "weight_decay": 0.01,
    },
]
optimizer = torch.optim.AdamW(groups, lr=1e-3)
steps = len(loader) // args.gradient_accumulation_steps
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: max(0.0, 1 - step / max(1, steps * args.num_train_epochs))
)
total_loss, completed = 0.0, 0
for epoch in range(args.num_train_epochs):
    model.train()
    sampler.set_epoch(epoch)
    for number, batch in enumerate(loader):
        batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
        last = (number + 1) % args.gradient_accumulation_steps == 0
        model.set_requires_gradient_sync(last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch) / args.gradient_accumulation_steps
        total_loss += loss.detach().float()
        loss.backward()
        if last:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            completed += 1
    gathered = [torch.zeros_like(total_loss) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, total_loss)
    mean = torch.stack(gathered).mean().item() / max(1, completed)
    perplexity = math.exp(min(mean, 20.0))
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {mean:.3f}, perplexity {perplexity:.1f}")
whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
state = get_model_state_dict(model, options=whole)
if dist.get_rank() == 0:
    torch.save(state, os.path.join(tempfile.mkdtemp(), "pytorch_model.bin"))
dist.destroy_process_group()
