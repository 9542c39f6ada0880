r"""Terminate called without an active exception: gloo outlives Python.

class: process group
symptom: crash
runs on: one process
chapter: ch5_ddp
signature: exit code -6: terminate called without an active exception

You see: all output is there, the checkpoint is written, then "terminate called without
an active exception" and exit code -6; torchrun reports the job as failed. Usually it
happens by chance: with DDP on gloo in torch 2.13, in 12 of 80 processes on a busy
machine, even with `destroy_process_group()`.

Cause: gloo's threads live in C++, but release Python objects and run Python callbacks
when a collective is done. While the interpreter shuts down, Python stops every such
thread that tries to enter it, and the thread's C++ code does not survive that. (Here
the script's last collective is completed by the other rank during the shutdown, so it
happens every time.)

Cure: wait for all work; then call a barrier, `destroy_process_group()`, flush, and
`os._exit(0)`, which skips the shutdown. With that, 0 of 80 aborted.

Next time: if your own last line was printed, nothing is lost. The exit code -6 without
a traceback, after the end of training, is the sign.

Links: https://github.com/pytorch/pytorch/pull/179291 (gloo's threads at interpreter exit)
https://github.com/pytorch/pytorch/issues/190489 (all_gather, and no destroy)
https://github.com/pytorch/pytorch/issues/38228 (how Python ends threads of C++)
"""

# %% given
import ctypes
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

cleared, clearing = os.pipe()


class Last:
    """What the interpreter clears at its end, while the other rank comes at last."""

    def __del__(self):
        os.write(clearing, b"!")
        time.sleep(5)


def run_script(train):
    """Run it as rank 0 in a process that ends as scripts do; be its late rank 1."""
    script = os.fork()
    store, rank = dist.FileStore("store", 2), 1 if script else 0
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    if not script:
        store.wait(["rank 1 has joined"])
        os.dup2(os.open("stderr", os.O_CREAT | os.O_WRONLY), 2)
        sys.modules["last"] = Last()
        try:
            train()
        finally:
            ctypes.pythonapi.Py_Exit(0)  # the end of a script
    store.set("rank 1 has joined", "")
    os.close(clearing)
    if os.read(cleared, 1):  # nothing to read: it has left at once
        dist.all_reduce(torch.ones(1), async_op=True)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(script, 0)[1])
    if exit_code:
        raise RuntimeError(f"exit code {exit_code}: {Path('stderr').read_text()}")
    return exit_code


# %% broken
def train():
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.get_future().then(lambda done: None)  # as a comm hook of DDP does
    sys.stdout.flush()


print("exit code", run_script(train))


# %% fixed
def train():
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.get_future().then(lambda done: None)  # as a comm hook of DDP does
    sys.stdout.flush()
    os._exit(0)


print("exit code", run_script(train))

# %% signs
# maybe: terminate called without an active exception
# with: \[rank0\]|\[c10d\]|torchrun|destroy_process_group|ProcessGroupGloo|torch[./]distributed|ChildFailedError|DataLoader
# with: torchrun|torch[./]distributed|distributed_c10d|ChildFailedError|DistributedDataParallel|local_rank|local-rank|LOCAL_RANK|init_process_group|world_size|WORLD_SIZE
# with: accelerate|deepspeed|DeepSpeed|ightning|mmcv[./]runner|mmengine|ProcessGroup|NCCL INFO|NCCL WARN|NCCL version|NCCL error|ProcessRaisedException
# with: multiprocessing[./]spawn|mp\.spawn|nn[./]parallel|DataParallel|egatron|orovod|olossal|dist_train|--nproc|node_rank|MASTER_(?:ADDR|PORT)
# with: \[rank0\]|\[rank1\]|\[rank2\]|\[rank3\]|\[rank4\]|\[rank5\]|\[rank6\]|\[rank7\]
