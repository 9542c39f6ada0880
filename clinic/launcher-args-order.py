r"""torchrun starts only one rank: its options come after the script.

class: launch
symptom: silent
runs on: one process
chapter: ch4_ranks
signature: 1 rank instead of 2
guard: 2 ranks were asked for, 1 came

You see: the job runs, on one GPU, and as slowly as before. There is no message.

Cause: everything after the script's name belongs to the script. torchrun sees no
`--nproc-per-node`, so it starts its default, one process, and the script gets an option
that it ignores. (With a strict argparse you are lucky: `unrecognized arguments:
--nproc-per-node=2`.)

Cure: put the launcher's options first, then the script, then the script's own options.

Next time: print `dist.get_world_size()` at the start, or assert the number you planned
for.

Links: https://docs.pytorch.org/docs/stable/elastic/quickstart.html (the order of the command line)
"""

# %% broken: torchrun train.py --nproc-per-node=2
import os

print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\n", end="")

# %% fixed: torchrun --nproc-per-node=2 train.py
import os

print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\n", end="")

# %% invariant: as many ranks run as the command asks for
ranks = text.count("rank ")
assert ranks == 2, f"{ranks} rank instead of 2"

# %% guarded
from allranks.guard import Guard

Guard(world_size=2)  # in train.py: its torchrun has started one process

# %% signs
# \.py: error: unrecognized arguments:.*--(?:nproc[-_]per[-_]node|nnodes|rdzv[-_]|master[-_])
# [Nn]o such option:? '?--(?:nproc[-_]per[-_]node|nnodes|master[-_]addr|rdzv[-_]endpoint)
