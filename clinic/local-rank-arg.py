r"""Unrecognized arguments: `--local-rank`.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: error: unrecognized arguments: --local-rank=0

You see: `unrecognized arguments: --local-rank=0`, an argument that you never typed,
once per process.

Cause: `python -m torch.distributed.launch` puts it on every process's command line,
after the script's name. Until torch 1.13 it was spelled `--local_rank`; 2.0 renamed it,
so scripts that parse the old spelling stopped working.

Cure: start with torchrun, which adds nothing, and read `LOCAL_RANK` from the
environment. To keep the old launcher, accept both spellings:
`add_argument("--local-rank", "--local_rank", type=int)`.

Next time: look at the launcher's first lines. A `FutureWarning` says that
`torch.distributed.launch` is deprecated and what replaces it.

Links: https://github.com/XPixelGroup/BasicSR/issues/626 (the new spelling, torch 2.0)
https://github.com/hkchengrex/XMem/issues/18 (the old spelling; torchrun cures it)
"""

# %% broken: python -m torch.distributed.launch train.py
import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
print(f"local rank {os.environ['LOCAL_RANK']}\n", end="")

# %% fixed: torchrun train.py
import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
print(f"local rank {os.environ['LOCAL_RANK']}\n", end="")

# %% signs
# nrecognized arguments?:.*--?local[-_]rank
# [Nn]o such option:? '?--local[-_]rank
# [Uu]nknown (?:command line )?(?:flag|option|arg\w*):? [\['-]*local[-_]rank
# not used by the HfArgumentParser:.*--local[-_]rank
# Could not consume arg: --local[-_]rank
# maybe: arguments are required:.*--local[-_]rank
# maybe: argument --local[-_]rank: (?:expected|invalid)
# maybe: 'Namespace' object has no attribute 'local[-_]rank'
# maybe: Key '?\W*local[-_]rank\W* (?:is )?not (?:in struct|expected)
# nrecognized (?:or misplaced )?options?:? .*--local[-_]rank
# LexerNoViableAltException: --local[-_]rank
# [Oo]verride '?-*local[-_]rank'? not found
