"""What torch's import made is never searched for garbage; kernels' ports stay free."""

import subprocess
import sys

TORCH = """
import gc
assert gc.get_freeze_count() == 0
cycle = []
cycle.append(cycle)
"""
PROGRAM = """
import gc, inspect, os, sys
import torch

class Ring:
    def __init__(self):
        self.me = self
    def __del__(self, write=os.write):
        write(1, b"collected\\n")

print(any(one is torch.cycle for one in gc.get_objects()))
print(gc.get_freeze_count() > 1000, torch.__spec__.name, flush=True)
print(inspect.getmodule(sys._getframe(1), "<frozen runpy>").__name__, flush=True)
Ring()
"""


def test_only_what_torchs_import_made_is_frozen(tmp_path):
    """A program's own ring of references still goes when its interpreter ends."""
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "program"]
    how = {"capture_output": True, "text": True, "timeout": 60, "cwd": tmp_path}
    said = subprocess.run(command, **how)
    lines = ["False", "True torch", "runpy", "collected"]
    assert (said.stdout.splitlines(), said.stderr) == (lines, "")


PORTS = """
import random, socket
from pathlib import Path
from jupyter_client.connect import LocalPortCache

given = Path("/proc/sys/net/ipv4/ip_local_port_range")  # Linux gives these to anybody
lowest = int(given.read_text().split()[0]) if given.exists() else 49152
cache = LocalPortCache()
print(all(cache.find_available_port("127.0.0.1") < lowest for _ in range(99)))
with socket.create_server(("127.0.0.1", 0)) as other:
    mine, free = (cache.find_available_port("127.0.0.1") for _ in range(2))
    cache.return_port(free)
    draws = iter([other.getsockname()[1], mine, free])
    random.randrange = lambda *_: next(draws)
    print(cache.find_available_port("127.0.0.1") == free)
"""


def test_a_kernel_gets_a_port_that_no_rank_can_be_given():
    """The system would give it to the next who asks, before the kernel has bound it."""
    command = [sys.executable, "-c", PORTS]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (said.stdout, said.stderr) == ("True\nTrue\n", "")
