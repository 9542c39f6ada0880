r"""find_unused_parameters=True, but the model uses all parameters.

class: performance
symptom: slow
runs on: 2 ranks
chapter: ch5_ddp
signature: 2 collectives a step instead of 1; .*find_unused_parameters=True was specified in DDP

You see: one warning, and steps that cost more than they need to.

Cause: with the flag, DDP walks the autograd graph after every forward to find the
parameters that will get no gradient. In each step it also reduces a map of what the
ranks have used, which is one collective more.

Cure: leave it off if every parameter gets a gradient in every step; if some never do,
freeze them (`requires_grad_(False)`) before DDP.

Next time: the warning names no model. If there are several (a GAN, a teacher), look at
each `DistributedDataParallel(`.

Links: https://github.com/ZhangGongjie/Meta-DETR/issues/60 (the warning)
https://github.com/VMarsocci/pangaea-bench/pull/111 (what the flag costs)
"""

# %% given
import os
import re
from pathlib import Path

from torch import nn
from torch.nn.parallel import DistributedDataParallel

group = dist.distributed_c10d._get_default_group()
native = Path(f"stderr{rank}")  # where torch's C++ warns
os.dup2(os.open(native, os.O_CREAT | os.O_WRONLY), 2)
model, x = nn.Linear(4, 1), torch.ones(2, 4)

# %% broken
ddp = DistributedDataParallel(model, find_unused_parameters=True)
for _ in range(3):
    before = group._get_sequence_number_for_group()
    ddp(x).sum().backward()
collectives = group._get_sequence_number_for_group() - before
print("collectives in a step:", collectives)

# %% fixed
ddp = DistributedDataParallel(model)
for _ in range(3):
    before = group._get_sequence_number_for_group()
    ddp(x).sum().backward()
collectives = group._get_sequence_number_for_group() - before
print("collectives in a step:", collectives)

# %% invariant: a step is one all-reduce: the gradients fit into one bucket
said = re.findall(r"Warning: (.+?\.)", native.read_text())
found = f"{collectives} collectives a step instead of 1; torch said: {said}"
assert collectives == 1 and not said, found

# %% signs
# did not find any unused parameters in the forward pass
# maybe: find_unused_parameters=True was specified in DDP constructor
