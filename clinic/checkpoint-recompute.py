r"""Recomputed values have different metadata: the second run differs.

class: model parallel
symptom: crash
runs on: one process
chapter: ch6_model_parallel
signature: have different metadata than during the forward pass

You see: `torch.utils.checkpoint: Recomputed values for the following tensors have different
metadata than during the forward pass`, in `backward()`, with the shape, dtype or device
that was saved and the one that came; or `A different number of tensors was saved`.

Cause: activation checkpointing throws the activations of a block away and runs it again
in backward. The second run has to do the same as the first. It does not if the block
changes something that it reads: a cache that grows, as here, a counter, a list. Nor
does it if its surroundings differ: weights that ZeRO-3 or FSDP has sharded again
(`torch.Size([0])`), or experts that receive other tokens.

Cure: take what changes out of the block: no key-value cache while training
(`use_cache=False`), no state in forward. With sharded weights let the framework's own
switch wrap the blocks, so that it gathers them for the second run.

Next time: `torch.utils.checkpoint.set_checkpoint_debug_enabled(True)` prints the operators of
both runs; look for the first one that differs.

Links: https://github.com/pytorch/pytorch/issues/155171 (a cache: 171 positions, then 342)
https://github.com/deepspeedai/DeepSpeed/pull/8148 (ZeRO-3: shapes that became 0)
https://github.com/pytorch/torchtitan/issues/1117 (experts that get other tokens)
"""

# %% given
from torch import nn
from torch.utils.checkpoint import checkpoint

layer = nn.Linear(4, 4)
cache = []


def block(x, use_cache):
    if use_cache:
        cache.append(x.detach())
        x = torch.cat([*cache[:-1], x])
    return layer(x).sigmoid()


x = torch.ones(2, 4, requires_grad=True)

# %% broken
checkpoint(block, x, True, use_reentrant=False).sum().backward()
print("gradient", tuple(x.grad.shape))

# %% fixed
checkpoint(block, x, False, use_reentrant=False).sum().backward()
print("gradient", tuple(x.grad.shape))

# %% signs
# Recomputed values for the following tensors have different metadata
# A different number of tensors was saved during the original forward
# torch\.utils\.checkpoint\.CheckpointError
