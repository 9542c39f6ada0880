r"""exitcode: -6 (SIGABRT): a rank aborts, the reason is further up.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: Signal 6 \(SIGABRT\) received

You see: `exitcode: -6` and `Signal 6 (SIGABRT) received by PID` in torchrun's box, and no
Python traceback of that rank.

Cause: signal 6 means that the program ended itself: C++ met an exception that nobody
catches (`terminate called after throwing`), an assertion failed, the heap was found
damaged (`free(): invalid pointer`), or NCCL's watchdog ended the process. Each of them
prints its reason first; the box only shows how the process ended.

Cure: search upwards from the box for the first `what():`, `Assertion`, `terminate called`
or `Watchdog` of that rank, and repair that.

Next time: `torchrun --log-dir logs --redirects 3 --tee 3` keeps the ranks' last words apart,
and `PYTHONFAULTHANDLER=1` adds the Python line that was being executed.

Links: https://github.com/open-mmlab/mmsegmentation/issues/3106 (three ranks, exitcode -6)
https://github.com/huggingface/accelerate/issues/2960 (on Slurm, while a checkpoint is saved)
"""

# %% broken: torchrun train.py
import os

share = []  # fewer files than ranks: none for this one
if not share:
    os.abort()  # as an assertion in C++ does, which says why first
print("files:", len(share))

# %% fixed: torchrun train.py
import os

share = ["train-00.bin"]
if not share:
    os.abort()  # as an assertion in C++ does, which says why first
print("files:", len(share))

# %% signs
# echo: Signal 6 \(SIGABRT\) received
# echo: exitcode *[:=]? *-6\b
# echo: died with <Signals\.SIGABRT: 6>|terminated with signal SIGABRT
# echo: with return code = -6\b
