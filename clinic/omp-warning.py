r"""Setting OMP_NUM_THREADS: torchrun gives each rank one CPU thread.

class: performance
symptom: slow
runs on: one process
chapter: ch4_ranks
signature: Setting OMP_NUM_THREADS environment variable[\s\S]*1 thread for each rank, chosen

You see: this box of text at every start with more than one rank. It is often taken for
the error, which comes later. Until you change it, preprocessing on the CPU is slow.

Cause: without OMP_NUM_THREADS each of your processes would start a thread per core, so
8 ranks on 64 cores would start 512 threads. So torchrun sets it to 1, the one number
that is never too many.

Cure: set the number yourself: cores of the machine divided by its ranks. The text then
disappears.

Next time: print `torch.get_num_threads()` in a rank. If your job failed, read on below
the box.

Links: https://github.com/pytorch/pytorch/issues/22260 (why launchers set it)
https://github.com/Lumi-supercomputer/LUMI-AI-Guide/issues/110 (torchrun's 1, or the cores of a rank: a discussion)
"""

# %% broken: torchrun --nproc-per-node 2 train.py
import os

print(f"threads of a rank: {os.environ['OMP_NUM_THREADS']}\n", end="")

# %% fixed: OMP_NUM_THREADS=4 torchrun --nproc-per-node 2 train.py
import os

print(f"threads of a rank: {os.environ['OMP_NUM_THREADS']}\n", end="")

# %% invariant: the number of threads is chosen, not torchrun's 1
chosen = "Setting OMP_NUM_THREADS" not in text
assert chosen, "1 thread for each rank, chosen by torchrun"

# %% signs
# maybe: Setting OMP_NUM_THREADS environment variable for each process to be 1
# unless: Timed out initializing process group
