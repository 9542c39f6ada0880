"""Run jobs of other scripts one after another, with ranks that are forked.

    forked.py 2 "ddp.py item" "ddp.py edit"

So torch is imported once for all of them. In a dry run, which is a rank already, say 1.
"""

import os
import runpy
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 - else each rank's first optimizer imports it
import torch.multiprocessing as mp
from torch.distributed import TCPStore

METHOD = "fork" if sys.platform == "linux" else "spawn"  # for a Mac's torch


def run(rank, about, words):
    """Run a script as one of the ranks that torchrun would start."""
    if "RANK" not in os.environ:
        os.environ |= {**about, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    size, jobs = sys.argv[1], sys.argv[2:]
    about = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
    about["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # that of this process
    for job in jobs:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        name, *words = job.split()
        words = [str(Path(__file__).with_name(name)), *words]
        about["MASTER_PORT"] = str(store.port)
        mp.start_processes(run, (about, words), int(size), start_method=METHOD)
