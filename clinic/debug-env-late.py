r"""TORCH_DISTRIBUTED_DEBUG is ignored: it was set after the import.

class: launch
symptom: silent
runs on: one process
chapter: ch4_ranks
signature: the level is OFF
beyond: Nothing is computed wrongly. A check that you asked for is not made, and the guard can't know that you asked for it.

You see: nothing. You asked for `DETAIL` because the job hangs, but you get no more
output than before.

Cause: the variable is read once, while `torch.distributed` is imported, so it is too
late when the script puts it into `os.environ` afterwards.

Cure: set it in the shell that starts torchrun, or call
`dist.set_debug_level_from_env()` before the group is formed. The value must be `OFF`,
`INFO` or `DETAIL`; anything else is refused. That is enough for the checks of
collectives, but the extra lines in the log also need `TORCH_CPP_LOG_LEVEL=INFO`.

Next time: `print(dist.get_debug_level())` shows which level is in force.

Links: https://github.com/pytorch/pytorch/issues/70667 (no extra lines in the log: TORCH_CPP_LOG_LEVEL was not set)
https://github.com/pytorch/pytorch/pull/73166 (the question of a late setting, and the functions for it)
"""

# %% given
import os

import torch.distributed as dist

# %% broken
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
print("debug level", dist.get_debug_level().name)

# %% fixed
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
dist.set_debug_level_from_env()
print("debug level", dist.get_debug_level().name)

# %% invariant: the level is the one in the environment
level, wanted = dist.get_debug_level().name, os.environ["TORCH_DISTRIBUTED_DEBUG"]
assert level == wanted, f"the level is {level}, not {wanted}"

# %% signs
# maybe: The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL
