r"""Attention leaks across document boundaries in packed sequences.

class: silent wrong
symptom: silent
runs on: one process
chapter: ch9_1_packing
signature: document 1 differs by \S+ from itself alone
beyond: All ranks make the same mistake. To see it, compare a document in a packed row with the same document alone.

You see: nothing. The loss falls, often faster than without packing, since a document
can copy from the one before it. What a document means depends on its neighbors in the
row, and the neighbors change with each epoch.

Cause: a causal mask hides the future, not other documents. A separator such as EOS
hides nothing, and positions that begin again at 0 don't either. Some kernels and
libraries take the borders from the positions, but only if no other mask is passed.

Cure: give each token the number of its document, and let two tokens see each other only
if the numbers are equal, in a mask or by a kernel for sequences of varying length. Let
the positions begin again, and ask no document to guess the next one's first token.

Next time: change the first document of a row, and look whether the second one's logits
move.

Links: https://github.com/huggingface/trl/issues/784 (does packing adjust the mask?)
https://github.com/huggingface/nanoVLM/pull/204 (new positions alone change little)
https://github.com/huggingface/transformers/pull/46634 (a mask of ones switches off the detection of packed rows)
"""

# %% given
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(1, 6, 8)  # a row of two documents with three tokens each
owner = torch.tensor([0, 0, 0, 1, 1, 1])

# %% broken
seen = F.scaled_dot_product_attention(x, x, x, is_causal=True)
print(f"token 3 becomes {seen[0, 3, 0].item():.3f}")

# %% fixed
mask = (owner[:, None] == owner).tril()
seen = F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
print(f"token 3 becomes {seen[0, 3, 0].item():.3f}")

# %% invariant: in a row a document becomes what it becomes alone
one = x[:, 3:]
alone = F.scaled_dot_product_attention(one, one, one, is_causal=True)
far = (seen[:, 3:] - alone).abs().max().item()
assert far < 1e-5, f"document 1 differs by {far:.2f} from itself alone"
