"""A sharded Llama of `transformers`, saved into a folder as chapter 12.1 shows it.

In a folder of its own, this file is test_llama.py. The variable SUBJECT names what
shards the model.
"""

import importlib
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

NUM_RANKS, NUM_STEPS = 2, 2
BOUNDS = {"rtol": 1e-5, "atol": 1e-6}
SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64}
SIZES |= {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}


def save(net: nn.Module, folder: str) -> None:
    """Write a sharded model into a folder, as from_pretrained reads it."""
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    full = get_model_state_dict(net, options=whole)  # on all ranks: this line gathers
    if dist.get_rank() == 0:
        net.save_pretrained(folder, state_dict=full)


def build(tied: bool) -> LlamaForCausalLM:
    """Return the same small Llama on each rank, each time."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied))


def tokens(seed: int) -> torch.Tensor:
    """Return a batch of random tokens."""
    dice = torch.Generator().manual_seed(seed)
    return torch.randint(SIZES["vocab_size"], (2, 16), generator=dice)


def on_rank(rank: int, tied: bool, folder: str) -> None:
    """Shard the model, train it, save it, and leave its logits in a file."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, rank=rank, world_size=NUM_RANKS)
    module, _, name = os.environ["SUBJECT"].rpartition(".")
    shard = getattr(importlib.import_module(module), name)
    net = build(tied)
    for layer in net.model.layers:
        shard(layer)
    shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        batch = tokens(NUM_RANKS * step + rank)
        net(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    save(net, f"{folder}/saved")
    with torch.no_grad():
        logits = net(input_ids=tokens(99)).logits
    if rank == 0:
        torch.save(logits, f"{folder}/logits.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_from_pretrained(tied: bool, record_property, tmp_path) -> None:
    """One process loads the folder, and computes the sharded model's logits."""
    args = tied, str(tmp_path)
    torch.multiprocessing.spawn(on_rank, args, nprocs=NUM_RANKS)
    files = {f.name for f in (tmp_path / "saved").iterdir()}
    assert files >= {"config.json", "model.safetensors"}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tied
    wanted = torch.load(tmp_path / "logits.pt")
    with torch.no_grad():
        logits, fresh = (m(input_ids=tokens(99)).logits for m in (loaded, build(tied)))
    record_property("gap", f"{(logits - wanted).abs().max():.0e}")
    assert (fresh - wanted).abs().max() > 0.1  # it has learned
    torch.testing.assert_close(logits, wanted, **BOUNDS)
