r"""Can't get attribute: a function from a notebook cell is spawned.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: Can't get attribute 'worker' on <module '__main__' \(built-in\)>

You see: `Can't get attribute 'worker' on <module '__main__' (built-in)>` from each
child; `mp.spawn` adds `ProcessExitedException: process 0 terminated with exit code 1`.

Cause: a notebook's `__main__` is not a file. The spawned process is a new Python, which
looks for `worker` in its own `__main__` and does not find it there.

Cure: write the function to a file (`%%writefile work.py`) and import it from there, or
start the file with torchrun. On the CPU under Linux `start_method="fork"` also works;
with CUDA it does not. Live ranks take functions from cells as they are.

Next time: `worker.__module__` is `"__main__"`: what is spawned should come from a
module with a name.

Links: https://github.com/jupyter/notebook/issues/6258 (a Process started from a cell)
https://github.com/open-mmlab/mmdeploy/issues/13 (cured by moving the function to a file)
"""

# %% given
import os
import sys

import torch.multiprocessing as mp

sys.path.insert(0, os.getcwd())


def spawn(worker):
    """Start one process, and fail with the last line that it wrote to stderr."""
    os.dup2(os.open("stderr", os.O_CREAT | os.O_WRONLY), 2)
    process = mp.get_context("spawn").Process(target=worker, args=(0,))
    process.start()
    process.join()
    if process.exitcode:
        with open("stderr") as file:
            raise SystemExit(file.read().splitlines()[-1])


# %% broken
def worker(rank):
    print("worker", rank)


spawn(worker)

# %% fixed
with open("work.py", "w") as file:
    file.write("def worker(rank): print('worker', rank)")

from work import worker

spawn(worker)

# %% signs
# Can't get attribute '\w+' on <module '__main__' \(built-in\)>
# Can't get attribute '\w+' on <module '__main__' \(<class '_frozen_importlib
# FileNotFoundError: .*<stdin>
# maybe: Can't get attribute '?[\w.<>]+'? on <module '?__mp_main__
# not compatible with an interactive environment
