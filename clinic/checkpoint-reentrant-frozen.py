r"""Gradient checkpointing on frozen embeddings: the checkpointed layers don't learn.

class: silent wrong
symptom: silent
runs on: one process
chapter: ch11_memory
signature: adapter moved by 0 instead of
beyond: All ranks agree, and the guard cannot know which layers you meant to train.

You see: `None of the inputs have requires_grad=True. Gradients will be None`, once, as a
warning. The loss falls, because the last layer learns. If all that you train is
checkpointed, you get an error in `backward()` instead: `element 0 of tensors does not
require grad and does not have a grad_fn`.

Cause: with `use_reentrant=True`, a checkpoint is one autograd function of its inputs.
The block's weights are not among these inputs. So if no input requires a gradient, the
function has none to compute, and it never runs the block again. That happens when the
embeddings are frozen, as they are with LoRA.

Cure: `use_reentrant=False`, which records what the block uses. In Hugging Face's Trainer
it is `gradient_checkpointing_kwargs={"use_reentrant": False}`; the older way is
`model.enable_input_require_grads()`.

Next time: after the first backward, list the parameters that should learn and have
`grad is None`. One line, and it finds every kind of forgotten layer.

Links: https://github.com/huggingface/transformers/issues/21381 (frozen first layers, all gradients off)
https://github.com/huggingface/transformers/issues/42489 (adapters in 2025)
https://github.com/hiyouga/LlamaFactory/issues/4905 ("the loss looks normal": does it matter?)
"""

# %% given
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
embedding = nn.Embedding(16, 8).requires_grad_(False)
adapter, head = nn.Linear(8, 8), nn.Linear(8, 16)
optimizer = torch.optim.SGD([*adapter.parameters(), *head.parameters()], lr=0.1)
tokens, before = torch.arange(16), adapter.weight.detach().clone()


def train(reentrant):
    for step in range(3):
        optimizer.zero_grad()
        x = checkpoint(adapter, embedding(tokens), use_reentrant=reentrant)
        loss = nn.functional.cross_entropy(head(x), tokens)
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.4f}")


# %% broken
train(reentrant=True)

# %% fixed
train(reentrant=False)

# %% invariant: the adapter moves as it does without a checkpoint
moved = (adapter.weight - before).abs().max().item()
with torch.no_grad():
    adapter.weight.copy_(before)
plain = torch.optim.SGD(adapter.parameters(), lr=0.1)
loss = nn.functional.cross_entropy(head(adapter(embedding(tokens))), tokens)
loss.backward()
plain.step()
step = (adapter.weight - before).abs().max().item()
assert moved > step / 2, f"adapter moved by {moved:g} instead of {step:.2g} a step"

# %% signs
# None of the inputs have requires_grad=True\. Gradients will be None
