r"""An async collective's result is read before wait().

class: process group
symptom: silent
runs on: 2 ranks
chapter: ch7_collectives
signature: read 1\.0 instead of 2\.0
guard: reported is 0\.5 on ranks 0, 1; the mean .* is 1

You see: a sum that is sometimes this rank's own value, sometimes right, sometimes half
of each. It gets worse when another rank is late.

Cause: `async_op=True` returns at once; the tensor belongs to the collective until
`work.wait()`. With NCCL, `wait()` makes the GPU's stream wait, not Python.

Cure: keep the handle, do other work first, and call `wait()` before anything reads or
writes the tensor.

Next time: search for `async_op=True` and follow each handle to its `wait()`. The guard
cannot see a handle that nobody waits for. What it sees is the wrong number that
results: a mean that you hand to `metric`, which adds up all ranks' totals and counts
itself. A sum that only the training uses goes unnoticed.

Links: https://docs.pytorch.org/docs/stable/distributed.html (async_op)
"""

# %% given
total = torch.ones(1)
go = torch.zeros(1)
if rank == 1:
    late = dist.irecv(go, src=0)

# %% broken
if rank == 1:
    late.wait()  # this rank comes later
work = dist.all_reduce(total, async_op=True)
read = total.item()
if rank == 0:
    dist.send(go, dst=1)
work.wait()
print("work done")

# %% fixed
if rank == 1:
    late.wait()  # this rank comes later
work = dist.all_reduce(total, async_op=True)
if rank == 0:
    dist.send(go, dst=1)
work.wait()
read = total.item()
print("work done")

# %% invariant: the first rank has read the sum
if rank == 0:
    assert read == world_size, f"read {read} instead of {float(world_size)}"

# %% guarded
from allranks.guard import Guard

if rank == 1:
    late.wait()  # this rank comes later
work = dist.all_reduce(total, async_op=True)
read = total.item()
if rank == 0:
    dist.send(go, dst=1)
work.wait()
logged = [read / world_size]
dist.broadcast_object_list(logged)  # what the first rank logs
Guard(None).metric(logged[0], total=1, count=1)
