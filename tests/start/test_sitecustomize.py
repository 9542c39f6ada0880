"""What torch's import made is never searched again, and a program's own garbage is."""

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
