"""An argument that the launcher no longer passes.

runs on: one process
outcome: raises
chapter: ch4_ranks

The script parses `--local_rank`, as the first launcher required. Since PyTorch 2.0 that
launcher passes `--local-rank`, with a dash, which the parser does not know. And without
`type=int` it would have got a string. `torchrun` passes no argument at all: it sets
`LOCAL_RANK` in the environment.
"""

# %% wrong: python -m torch.distributed.launch --standalone train.py
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank")
args = parser.parse_args()
print("local rank", args.local_rank)

# %% right: torchrun --standalone --nproc-per-node 2 train.py
import os

local_rank = int(os.environ["LOCAL_RANK"])
print("local rank", local_rank)
