"""Fail in a child, move, start a script and another program, and leave at once."""

import multiprocessing
import os
import subprocess
import sys

import apex
import apex.parallel
import torch


class Own(ValueError):
    """An error with what torch's errors of child processes have."""

    exit_code, failures = 7, ("none",)


class Child(multiprocessing.get_context("fork").Process):
    """A process that has a method of its own to run."""

    def run(self):
        """Fail."""
        raise Own("of a process of its own class")


here = os.path.dirname(os.path.realpath(__file__))
assert os.path.isabs(__file__) and sys.path[0] == here
assert os.environ["TOLD"] == "a b" and sys.stdout.line_buffering
if len(sys.argv) == 1:
    assert not os.path.isabs(sys.argv[0])
    child = Child()
    child.start()
    child.join()
    held = torch.ones(2**20, device="cuda")
    del held
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    os.chdir("/")
    try:
        os.execvp("no such program", ["x"])
    except FileNotFoundError:
        subprocess.run([sys.executable, __file__, "again"], check=True)
    sleeps = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(f"pid {sleeps.pid}", flush=True)
    os._exit(3)
count = torch.cuda.device_count()
print(f"{apex.told}, {apex.parallel.told}, {count} GPU, of a script that it started")
sys.stdout.close()
