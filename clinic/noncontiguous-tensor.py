r"""Tensors must be contiguous: a collective gets a view.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: ValueError: Tensors must be contiguous

You see: `Tensors must be contiguous`, on all ranks, at the first collective that gets
the result of `.t()`, `.transpose()`, `.permute()` or a slice of columns. On gloo
`send` says `input tensor has to be contiguous`, and the receiver waits on.

Cause: the library sends a block of memory: an address and a length. The rows of a
transposed view do not lie next to each other there. NCCL refuses such a view nearly
everywhere, gloo only in the call below and in `send`, so code that passed on the CPU
can fail on GPUs. Elsewhere gloo copies (`all_gather`, `gather`, `reduce_scatter`,
`all_to_all`), or takes memory as it lies: `all_reduce` of a column is silently wrong.

Cure: call `.contiguous()` on the input. The output must be contiguous, too:
`torch.empty_like` of a transposed tensor is transposed again, so give `torch.empty` the
shape.

Next time: print `x.stride()` and `x.is_contiguous()` before the call that the traceback
names. NCCL only warns in `send` and `recv` ("Detected non-contiguous tensor in P2P
operations"), and then the numbers arrive in a different order.

Links: https://github.com/pytorch/pytorch/issues/73515 (all_gather whose outputs were made with empty_like)
https://github.com/facebookresearch/fairscale/pull/1173 (a transposed weight, gathered)
https://github.com/pytorch/pytorch/issues/62283 (send and recv: NCCL is wrong in silence)
"""

# %% given
x = torch.arange(8.0).reshape(2, 4) + 10 * rank

# %% broken
columns = x.t()  # half of them for each rank
received = torch.empty(4, 2)
dist.all_to_all_single(received, columns)
print(received.tolist())

# %% fixed
columns = x.t().contiguous()  # half of them for each rank
received = torch.empty(4, 2)
dist.all_to_all_single(received, columns)
print(received.tolist())

# %% signs
# Tensors must be contiguous
# (?:in|out)put tensor has to be contiguous
# maybe: Detected non-contiguous tensor in P2P operations
