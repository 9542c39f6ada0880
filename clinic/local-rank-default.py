r"""Every rank uses GPU 0: `--local-rank` was left at its default.

class: launch
symptom: silent
runs on: one process
chapter: ch4_ranks
signature: 2 processes share device 0
beyond: On GPUs, the guard raises if two ranks use one device. This case runs without a GPU, so no device is shared.

You see: no error, or a GPU 0 that is full while the other GPUs idle. (The
`AssertionError` comes from our check.) With NCCL, the job ends with `Duplicate GPU
detected`, or out of memory on device 0.

Cause: the script was written for `torch.distributed.launch`, which passed
`--local-rank`. torchrun passes no argument, so every rank gets argparse's default. If
that is -1, many scripts take it for "not distributed"; if it is 0, all ranks use the
first GPU.

Cure: read `os.environ["LOCAL_RANK"]`, and let it fail if there is none, because no
number is a good default for a rank. The repaired code keeps `--local-rank` for old
launch commands, and takes its default from there.

Next time: print rank, local rank and device once on every rank, before the first step.

Links: https://docs.pytorch.org/docs/stable/elastic/run.html (how to move from launch to torchrun)
"""

# %% broken: torchrun --nproc-per-node 2 train.py
import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", type=int, default=0)
local_rank = parser.parse_args().local_rank
print(f"rank {os.environ['RANK']} uses device {local_rank}\n", end="")

# %% fixed: torchrun --nproc-per-node 2 train.py
import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", type=int, default=os.environ["LOCAL_RANK"])
local_rank = parser.parse_args().local_rank
print(f"rank {os.environ['RANK']} uses device {local_rank}\n", end="")

# %% invariant: each process of a machine has a device of its own
devices = [line.split()[-1] for line in text.splitlines() if "device" in line]
most = max(devices, key=devices.count)
shared = devices.count(most)
assert shared == 1, f"{shared} processes share device {most}"

# %% signs
# maybe: Duplicate GPU detected
# with: local_rank ?[=:] ?-1\b
# maybe: \| +0 +(?:N/A +N/A +)?\d+ +C [^|]*MiB \| \| +0 +(?:N/A +N/A +)?\d+ +C && \| +[1-9] +(?:NVIDIA|Tesla |GeForce|Quadro)|torchrun|local_rank|local-rank|DistributedData
# unless: MiB \| \| +[1-9] +(?:N/A +N/A +)?\d+ +C
