r"""Recursive doubling is wrong unless the rank count is a power of two.

class: silent wrong
symptom: silent
runs on: 3 ranks
chapter: ch7_collectives
signature: ranks hold \[\S+, \S+, \S+\] instead of
beyond: The guard does not know what your own sends and receives should add up to.

You see: an all_reduce of your own that was right on 2, 4 and 8 ranks ends on 3 as well,
without a word. But the ranks now hold different sums.

Cause: in each step a rank exchanges its sum with `rank ^ hop`. With three ranks, rank 1
has no partner in the second step, since there is no rank 3. If the code skips that step,
rank 1 never hears of rank 2. With six ranks it is worse: ranks 2 and 3 miss two others.

Cure: the ranks beyond the largest power of two first add their numbers to partners
below it, sit out, and are sent the sum at the end. That costs two more steps.

Next time: try a collective of your own on 3, 5 and 6 ranks, and compare all ranks'
results with `dist.all_reduce`.

Links: https://github.com/pmodels/mpich/blob/main/src/mpi/coll/allreduce/allreduce_intra_recursive_doubling.c (folds the ranks beyond a power of two in first)
"""

# %% given
x = torch.tensor([10.0**rank])


def exchange(mine, peer):
    theirs = torch.empty_like(mine)
    ops = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return mine + theirs


# %% broken
hop = 1
while hop < world_size:
    if rank ^ hop < world_size:
        x = exchange(x, rank ^ hop)
    hop *= 2
print(f"sum {x.item():g}")

# %% fixed
inside = 1 << (world_size.bit_length() - 1)  # the largest power of two
if rank >= inside:
    dist.send(x, rank - inside)
elif rank + inside < world_size:
    extra = torch.empty_like(x)
    dist.recv(extra, rank + inside)
    x = x + extra
hop = 1
while rank < inside and hop < inside:
    x = exchange(x, rank ^ hop)
    hop *= 2
if rank >= inside:
    dist.recv(x, rank - inside)
elif rank + inside < world_size:
    dist.send(x, rank + inside)
print(f"sum {x.item():g}")

# %% invariant: every rank holds the sum over all ranks
held = [torch.empty_like(x) for _ in range(world_size)]
dist.all_gather(held, x)
got, want = [int(one.item()) for one in held], 111
assert got == [want] * world_size, f"ranks hold {got} instead of {want}"
