"""Move, start a script and another program, and leave at once."""

import os
import subprocess
import sys

import apex
import apex.parallel
import torch

assert os.path.isabs(__file__) and sys.path[0] == os.path.dirname(
    os.path.realpath(__file__)
)
assert os.environ["TOLD"] == "a b"
if len(sys.argv) == 1:
    assert not os.path.isabs(sys.argv[0])
    held = torch.ones(2**20, device="cuda")
    del held
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    os.chdir("/")
    subprocess.run([sys.executable, __file__, "again"], check=True)
    sleeps = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(f"pid {sleeps.pid}", flush=True)
    os._exit(3)
count = torch.cuda.device_count()
print(f"{apex.told}, {apex.parallel.told}, {count} GPU, of a script that it started")
sys.stdout.close()
