r"""The result of reduce is used on a rank other than its destination.

class: process group
symptom: silent
runs on: 3 ranks
chapter: ch4_ranks
signature: rank 2: AssertionError: 3\.0 instead of 6\.0
guard: value loss.* 6 on rank 0 and 5 on rank 1 and 3 on rank 2

You see: rank 0 prints the right number. But a decision that every rank bases on it, an
early stop or the best epoch, differs between the ranks.

Cause: `dist.reduce` promises the sum on `dst` only. gloo uses the tensors of the other
ranks as scratch, so they hold partial sums; NCCL leaves them as they were.

Cure: `all_reduce` if every rank needs it; otherwise read it only where `rank == dst`.

Next time: print the value on every rank, not only on rank 0.

Links: https://docs.pytorch.org/docs/stable/distributed.html (reduce: only dst receives)
https://github.com/pytorch/pytorch/issues/21480 (gloo's partial sums on the other ranks, NCCL's untouched tensors)
"""

# %% given
loss = torch.tensor(1.0 + rank)

# %% broken
dist.reduce(loss, dst=0)
print("loss of all ranks:", loss.item())

# %% fixed
dist.all_reduce(loss)
print("loss of all ranks:", loss.item())

# %% invariant: every rank has the sum over all ranks
want = float(sum(range(1, world_size + 1)))
assert loss == want, f"{loss.item()} instead of {want}"

# %% guarded
from allranks.guard import Guard

dist.reduce(loss, dst=0)
Guard().same(loss=loss)
