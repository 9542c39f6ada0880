r"""pin_memory is set as true but no accelerator is found.

class: data
symptom: silent
runs on: one process
chapter: ch9_data
signature: UserWarning: 'pin_memory' argument is set as true but no accelerator is found
beyond: Nothing is computed wrongly, and torch itself warns that without an accelerator it pins no memory.

You see: a warning for each loader on a machine without a GPU. The training is right.

Cause: pinned memory lets a GPU fetch a batch by itself while the CPU goes on. Without a
GPU there is nothing to pin it for, so the loader does not. On a machine that has GPUs
the warning means something else: torch does not see them (a CPU build, an old driver,
an empty `CUDA_VISIBLE_DEVICES`), and you train on the CPU.

Cure: ask for it only where there is an accelerator, by
`pin_memory=torch.accelerator.is_available()`.

Next time: look for this line first if training is a hundred times too slow, and print
the device at the start of each run.

Links: https://github.com/conservationtechlab/animl-py/issues/209 (the warning on a CPU; the device is checked first)
"""

# %% given
from torch.utils.data import DataLoader

# %% broken
loader = DataLoader(range(4), batch_size=4, pin_memory=True)
batch = next(iter(loader))
print(batch)

# %% fixed
pin = torch.accelerator.is_available()
loader = DataLoader(range(4), batch_size=4, pin_memory=pin)
batch = next(iter(loader))
print(batch)

# %% invariant: the loader pins if there is an accelerator to pin for
as_asked = batch.is_pinned() == loader.pin_memory
assert as_asked, "pin_memory is set, the batch is not"

# %% signs
# 'pin_memory' argument is set as true but no accelerator is found
# pin_memory.{0,40}is set as true but no CUDA
