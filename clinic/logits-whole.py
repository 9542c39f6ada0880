r"""The loss takes more memory than all layers, because the vocabulary is large.

class: performance
symptom: slow
runs on: one process
chapter: ch11_memory
signature: the loss keeps \d+ KiB beside \d+ KiB of all layers

You see: out of memory in the last layer, in `cross_entropy`, in `logits.float()`, or at
the very beginning of backward. Checkpointing every layer hardly helps.

Cause: the last layer gives a number for each word of the vocabulary and each token. In
float32 these logits take 4 · B · T · V bytes: 4.2 GB for one sample of 8,192 tokens and
128,256 words. The loss keeps as much again, and backward begins with their gradients.

Cure: cut the tokens into chunks, so that only one chunk's logits exist. A checkpoint
around each chunk's loss, as here, is the shortest way. Fused kernels do it without a
second forward: Liger's `LigerFusedLinearCrossEntropyLoss`, or TRL's and torchtune's
chunked losses.

Next time: compute 4 · B · T · V before you checkpoint layers. {ref}`ch11_memory` counts
the rest.

Links: https://github.com/EvolvingLMMs-Lab/LongVA/pull/19 (peak from 43 GB to 8 GB by chunks)
https://github.com/modelscope/ms-swift/issues/6966 (`logits.float()` asks for 49 GB)
https://github.com/THUDM/slime/issues/2253 (248,000 words: tens of GB)
"""

# %% given
from torch import nn
from torch.utils.checkpoint import checkpoint

layers = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)))
head = nn.Linear(32, 4096)
x, words = torch.randn(256, 32), torch.arange(256)
kept = {}


def keep(tensor):
    if not isinstance(tensor, nn.Parameter) and tensor.data_ptr() not in weights:
        kept[tensor.data_ptr()] = tensor.nbytes // 1024
    return tensor


weights = {p.data_ptr() for p in head.parameters()}
weights |= {p.data_ptr() for p in layers.parameters()}
with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
    hidden = layers(x)
KiB, kept = sum(kept.values()), {}  # of the layers
hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)


def loss_of(hidden, words):
    return nn.functional.cross_entropy(head(hidden), words, reduction="sum")


# %% broken
with hooks:
    loss = loss_of(hidden, words) / len(words)
loss.backward()
print(f"loss {loss.item():.4f}")

# %% fixed
loss = 0
with hooks:
    for chunk in zip(hidden.split(32), words.split(32), strict=True):
        loss = loss + checkpoint(loss_of, *chunk, use_reentrant=False) / len(words)
loss.backward()
print(f"loss {loss.item():.4f}")

# %% invariant: the loss keeps no more than the layers do
assert sum(kept.values()) <= KiB, (
    f"the loss keeps {sum(kept.values())} KiB beside {KiB} KiB of all layers"
)
