r"""Default process group has not been initialized: it was destroyed.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: Default process group has not been initialized

You see: after a training that went well, the same sentence as if there had never been a
group.

Cause: `destroy_process_group()` forgets the default group. A final evaluation, a logger
that averages, or a `barrier` in a clean-up function still asks for it.

Cure: destroy the group last, after everything that communicates.

Next time: the message cannot tell the two causes apart. If some step of the training
ran before it, look for `destroy_process_group` above the failing line.

Links: https://github.com/pytorch/pytorch/pull/122358 (when to call it: when nothing communicates any more)
"""

# %% given
steps = torch.tensor(10)

# %% broken
dist.destroy_process_group()
dist.all_reduce(steps)
print("steps of all ranks:", steps.item())

# %% fixed
dist.all_reduce(steps)
dist.destroy_process_group()
print("steps of all ranks:", steps.item())

# %% signs
# maybe: Default process group has not been initialized
# with: destroy_process_group
