r"""A rank calls a collective of a group that it does not belong to.

class: process group
symptom: silent
runs on: 3 ranks
chapter: ch7_collectives
signature: rank 2: AssertionError: 0 samples instead of 3
guard: value count.* is not .* 3 on ranks 0, 1 and 0 on rank 2

You see: one warning on the outsider, then training goes on. Its tensor is as it was
before.

Cause: for an outsider `new_group` returns a marker that says "not a member". Every
collective that gets it warns and returns at once; this is by design, so that all ranks
can run the same line.

Cure: if its result is needed there, use a group that has the rank in it; if not, guard
the call with `if rank in members`.

Next time: `dist.get_rank(group)` is -1 on an outsider. Turn the warning into an error:
`python -W error::UserWarning`.

Links: https://docs.pytorch.org/docs/stable/distributed.html (new_group, groups)
"""

# %% given
some = dist.new_group([0, 1])  # the ranks that have samples
everyone = dist.group.WORLD
count = torch.tensor([1, 2, 0][rank])

# %% broken
dist.all_reduce(count, group=some)
print("samples of all ranks:", count.item())

# %% fixed
dist.all_reduce(count, group=everyone)
print("samples of all ranks:", count.item())

# %% invariant: every rank knows the number of all samples
assert count == 3, f"{count.item()} samples instead of 3"

# %% guarded
from allranks.guard import Guard

dist.all_reduce(count, group=some)
Guard().same(count=count)

# %% signs
# on global rank \d+ which does not belong to the given group
# Global rank \d+ is not part of group|Invalid process group specified
# maybe: is not registered, please create group with torch
