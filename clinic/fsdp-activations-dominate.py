r"""FSDP saves no memory, because activations take most of it.

class: performance
symptom: slow
runs on: 2 ranks
chapter: ch12_fsdp
signature: \d+ KiB of activations beside \d+ KiB that FSDP can shard

You see: peak memory with FSDP is as high as with DDP, or a little higher, and more GPUs
don't help. The batch that did not fit still does not fit.

Cause: FSDP shards parameters, gradients and the optimizer's states: 16 bytes a parameter
with Adam in float32. It does not shard activations, what the forward keeps for the
backward. Their size depends on the batch, on the image or the sequence, not on the
number of parameters: a segmentation net of 5,000 parameters keeps megabytes.

Cure: recompute instead of keeping (`torch.utils.checkpoint`, as here, around each block),
a smaller batch per rank with accumulation, smaller crops, bfloat16; for long sequences
sequence or context parallelism.

Next time: count before you choose. 16 bytes times the parameters is what FSDP divides by
the number of ranks. What is left of the peak are activations:
`torch.cuda.memory._record_memory_history()`, or the table of {ref}`app_rehearse`.

Links: https://discuss.pytorch.org/t/fsdp-training-no-gpu-memory-decrease/167734 (a segmentation net: no decrease with FSDP)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


def block():
    layers = [nn.Conv2d(4, 4, 3, padding=1), nn.GELU()]
    return fully_shard(nn.Sequential(*(2 * layers)))


model = nn.Sequential(block(), block())
states = 16 * sum(p.numel() for p in model.parameters()) // 1024  # KiB, with Adam
images, kept = torch.zeros(8, 4, 32, 32), {}


def keep(tensor):
    kept[tensor.data_ptr()] = tensor.nbytes
    return tensor


hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)

# %% broken
with hooks:
    loss = model(images).mean()
loss.backward()
print("KiB that FSDP shards:", states)

# %% fixed
with hooks:
    x = images
    for part in model:
        x = checkpoint(part, x, use_reentrant=False)
    loss = x.mean()
loss.backward()
print("KiB that FSDP shards:", states)

# %% invariant: a step keeps at most 512 KiB of activations
KiB = sum(kept.values()) // 1024
assert KiB <= 512, f"{KiB} KiB of activations beside {states} KiB that FSDP can shard"
