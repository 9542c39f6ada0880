r"""Trying to initialize the default process group twice.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: trying to initialize the default process group twice

You see: the second `init_process_group` fails on every rank: a notebook cell that runs
again, or a trainer that makes the group although your script has already made it.

Cause: a process has one default group, and all collectives without a `group=` use it.
A second one would leave the first one's connections open and its users guessing, so
torch refuses.

Cure: ask `dist.is_initialized()` first, and let one place in the program own the group.

Next time: search your code and the trainer's for `init_process_group`,
`init_distributed` and `Accelerator(`.

Links: https://github.com/Lightning-AI/pytorch-lightning/issues/2133 (a trainer's test after its fit)
https://github.com/NVIDIA/Megatron-LM/pull/521 (the group was made by hand before)
"""

# %% broken
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% fixed
if not dist.is_initialized():
    dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% signs
# trying to initialize the default process group twice
