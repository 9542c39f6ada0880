r"""gloo scatters the wrong numbers of a view.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch4_ranks
signature: rank 0 has \[\[0\.0, 1\.0\], \[2\.0, 3\.0\]\] of the first columns \[\[0\.0, 1\.0\], \[4\.0, 5\.0\]\]
beyond: Every rank is meant to get a part of its own; only the sender knows what each should have been.

You see: nothing. Shapes and types are right, the training runs, and every rank has
numbers that do not belong together.

Cause: `chunk(2, dim=1)` returns views: their rows are not neighbours in memory. Gloo's
`scatter` sends as many numbers as the view has, beginning at its first one, and ignores
the strides. `all_reduce` and `all_gather` copy such a tensor first; NCCL refuses it.

Cure: `.contiguous()` on each part. Splitting along dimension 0 needs none, since whole
rows lie together.

Next time: scatter `torch.arange(n).reshape(shape)` once and look at what arrives.

Links: https://github.com/pytorch/pytorch/issues/24836 (gloo's scatter with a stride, since 1.2)
https://github.com/pytorch/pytorch/issues/192920 (scatter, broadcast and reduce on gloo, 2026)
https://github.com/pytorch/pytorch/issues/159548 (gather had it on NCCL)
"""

# %% given
whole = torch.arange(8.0).reshape(2, 4)
mine = torch.empty(2, 2)

# %% broken
parts = None
if rank == 0:
    parts = list(whole.chunk(world_size, dim=1))
dist.scatter(mine, parts)
print(mine.tolist())

# %% fixed
parts = None
if rank == 0:
    parts = [p.contiguous() for p in whole.chunk(world_size, dim=1)]
dist.scatter(mine, parts)
print(mine.tolist())

# %% invariant: rank 0 has the first columns
columns = whole[:, :2].tolist()
words = f"rank 0 has {mine.tolist()} of the first columns {columns}"
assert rank or mine.tolist() == columns, words
