r"""Context has already been set: set_start_method is called twice.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: RuntimeError: context has already been set

You see: `context has already been set` at `set_start_method`, often only when a cell is
run again, or after a library was imported.

Cause: the start method is one setting for the whole process, and Python lets it be set
once. A library, a `multiprocessing.Lock()` or the first run of your cell has already
set it.

Cure: make your own context and start processes from it, which leaves everybody else's
choice alone. `set_start_method("spawn", force=True)` overrides that choice, and may
break what relied on it.

Next time: `multiprocessing.get_start_method(allow_none=True)` at the top of the script
tells whether it was set before your code ran.

Links: https://github.com/pytorch/pytorch/issues/40403 (a Lock had set the context to fork)
"""

# %% given
import torch.multiprocessing as mp

mp.set_start_method("fork", force=True)  # a library, as it was imported

# %% broken
mp.set_start_method("spawn")
print("processes will start with", mp.get_start_method())

# %% fixed
context = mp.get_context("spawn")
print("processes will start with", context.get_start_method())

# %% signs
# context has already been set
