"""The old launcher.

runs on: one process
outcome: warns
chapter: ch4_ranks

The article starts its ranks with `torch.distributed.launch`, which was right when it
was written. It still works, but it warns that it will be removed, and underneath it is
`torchrun`.
"""

# %% wrong: python -m torch.distributed.launch --standalone train.py
import os

print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])

# %% right: torchrun --standalone train.py
import os

print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
