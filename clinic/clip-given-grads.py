r"""`clip_grads_with_norm_` gets gradients instead of parameters.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch10_precision
signature: norm of the clipped gradient \S+ instead of at most 1
beyond: All ranks make the same mistake, so nothing differs. Only the norm after the clipping shows it.

You see: nothing. The norm that is logged is right, and training runs as if there were no
clipping: spikes of the loss that the threshold should have stopped.

Cause: the function wants parameters and scales the `.grad` of each. A gradient is a
tensor without a `.grad`, so the list that it scales is empty, and it does not complain.
Its sibling `get_total_norm` does want the gradients, which invites the mistake.

Cure: `torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)`; or
`clip_grad_norm_(model.parameters(), max_norm)`, which does both.

Next time: compute the norm once more after clipping: it is at most the threshold.

Links: https://github.com/huggingface/transformers/issues/46113 (gradients instead of parameters: nothing is clipped)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
model = fully_shard(nn.Linear(4, 2))
(100 * model(torch.ones(8, 4) + rank)).pow(2).mean().backward()
grads = [p.grad for p in model.parameters()]
norm = nn.utils.get_total_norm(grads).full_tensor()

# %% broken
nn.utils.clip_grads_with_norm_(grads, 1.0, norm)
print("clipped" if norm > 1 else "small enough")

# %% fixed
nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
print("clipped" if norm > 1 else "small enough")

# %% invariant: after clipping to 1, the norm is at most 1
after = nn.utils.get_total_norm(grads).full_tensor().item()
assert after < 1.001, f"norm of the clipped gradient {after:.0f} instead of at most 1"
