r"""An attempt has been made to start a new process: no main guard.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: An attempt has been made to start a new process

You see: `An attempt has been made to start a new process before the current process has
finished its bootstrapping phase`, from each child.

Cause: a spawned process is a new Python that imports your script to find the function
it is to run. If the script starts processes at module level, each child would start its
own children, so Python refuses.

Cure: put what must happen only once under `if __name__ == "__main__":`, which is false
in the children.

Next time: everything at module level runs once per process. With
`torch.multiprocessing.spawn` the last line is only
`ProcessExitedException: process 0 terminated with exit code 1`; the cause stands above
it. (The diff uses the standard library, on which torch's `spawn` is built.)

Links: https://github.com/AnswerDotAI/fsdp_qlora/issues/28 (a training script that spawns its ranks)
https://github.com/facebookresearch/mmf/issues/1182 (torch's spawn, called from a script)
"""

# %% broken: python train.py
from multiprocessing import get_context


def worker(rank):
    print("worker", rank)


process = get_context("spawn").Process(target=worker, args=(0,))
process.start()
process.join()
raise SystemExit(process.exitcode)

# %% fixed: python train.py
from multiprocessing import get_context


def worker(rank):
    print("worker", rank)


if __name__ == "__main__":
    process = get_context("spawn").Process(target=worker, args=(0,))
    process.start()
    process.join()
    raise SystemExit(process.exitcode)

# %% signs
# An attempt has been made to start a new process before the
# finished its bootstrapping phase
# freeze_support\(\)" line can be omitted
# maybe: BrokenPipeError: \[Errno 32\] Broken pipe
# with: popen_spawn_win32|ForkingPickler\(file
