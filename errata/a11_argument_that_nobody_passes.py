"""An argument that stays empty.

runs on: 2 ranks
outcome: raises
chapter: ch4_ranks

Started with `torchrun`, the article's script gets no argument, so `args.local_rank` is
None, and the first call that wants a device fails. The number is in the environment.
"""

# %% given
import argparse
import os

# %% wrong
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
args = parser.parse_args([])  # what torchrun passes
torch.cuda.set_device(args.local_rank)

# %% right
local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank)  # on a machine with GPUs
print(device)
