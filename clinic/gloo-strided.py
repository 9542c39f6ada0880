r"""gloo reduces the wrong elements of a column view.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch4_ranks
signature: right \[2\.0, 4\.0, 3\.0\] instead of \[2\.0, 4\.0, 6\.0\]
beyond: The wrong numbers belong to a metric of your own, and only you know what they should be.

You see: nothing. Shapes and types are right, and so are some of the sums. Others are
still this rank's own numbers, and numbers of the next column have been added up in
their place.

Cause: a column's numbers do not lie next to each other in memory. Gloo's `all_reduce`
takes as many numbers as the view has, beginning at its first one, and ignores the
strides; so do `broadcast`, `reduce` and `scatter`. `all_gather` copies first. NCCL
refuses such a tensor with a message.

Cure: `.contiguous()` makes a copy in one piece; write the result back if the table
needs it.

Next time: `x.is_contiguous()` before the call. Slices of columns, `chunk(n, dim=1)` and
every second element give such views; rows, and `chunk` along dimension 0, do not.

Links: https://github.com/pytorch/pytorch/issues/192920 (scatter, broadcast and reduce on gloo, 2026)
https://github.com/pytorch/pytorch/issues/24836 (scatter with every second element, 2019)
https://github.com/pytorch/pytorch/issues/159548 (the same in NCCL's gather)
"""

# %% given
table = torch.tensor([[1.0, 10.0], [2.0, 10.0], [3.0, 10.0]])  # right, seen

# %% broken
right = table[:, 0]
dist.all_reduce(right)
print("right:", right.tolist(), "seen:", table[:, 1].tolist())

# %% fixed
right = table[:, 0].contiguous()
dist.all_reduce(right)
print("right:", right.tolist(), "seen:", table[:, 1].tolist())

# %% invariant: each number is the sum over the ranks
want = [world_size * own for own in (1.0, 2.0, 3.0)]
assert right.tolist() == want, f"right {right.tolist()} instead of {want}"
