r"""A name that lives on: the last batch's logits are still there in the next forward.

class: performance
symptom: slow
runs on: one process
chapter: ch11_memory
signature: \d+ KiB of the last batch are alive in the next forward

You see: the second step runs out of memory, and the first didn't. Or the peak is higher
than your sum of weights, gradients, states and activations, by one batch's logits.

Cause: a Python name keeps its tensor until it is assigned anew. `logits = model(x)` is
assigned *after* the forward has run, so the old logits live through the whole forward,
where activations pile up. With a vocabulary of 128,000 words and 4,096 tokens in bf16
they take a gigabyte for each sample.

Cure: `del logits` when you no longer need them, or don't name them at all. A function
that does one step is best: all its names end with it.

Next time: in a memory snapshot, look for a block that begins in one step and ends in
the forward of the next.

Links: https://github.com/foundation-model-stack/fms-fsdp/pull/152 (1 GiB a sample for 128,000 words)
https://github.com/meta-pytorch/torchtune/pull/1046 (6 % of the peak, seen in a snapshot)
"""

# %% given
import weakref

from torch import nn

model = nn.Linear(32, 4096)
alive, held = weakref.WeakSet(), []  # all logits; bytes of them when a forward begins


def count(module, inputs):
    held.append(sum(logits.nbytes for logits in alive))


def remember(module, inputs, logits):
    alive.add(logits)


model.register_forward_pre_hook(count)
model.register_forward_hook(remember)
batches = torch.randn(3, 64, 32)
words = torch.arange(64)

# %% broken
for x in batches:
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, words)
    loss.backward()
print("steps:", len(held))

# %% fixed
for x in batches:
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, words)
    del logits
    loss.backward()
print("steps:", len(held))

# %% invariant: no logits are alive when a forward begins
KiB = max(held) // 1024
assert not KiB, f"{KiB} KiB of the last batch are alive in the next forward"
