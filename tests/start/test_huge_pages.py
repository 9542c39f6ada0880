"""A worker's fork server has huge pages, and that of a notebook's kernel has not."""

import ctypes
import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from allranks import Ranks
from tests.start import huge_pages

PROGRAM = """
held = bytearray(2**25)
held[::4096] = bytes(2**13)
import huge_pages
for line in open("/proc/self/smaps_rollup"):
    if line.startswith("AnonHugePages"):
        print(int(line.split()[1]) // 2**10)
"""


def is_possible() -> bool:
    """Tell whether this Linux does what it is asked for."""
    size = 2 * huge_pages.SIZE
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = bytes(size)
        part = (ctypes.c_char * size).from_buffer(memory)
        first = -(ctypes.addressof(part) // -huge_pages.SIZE) * huge_pages.SIZE
        where = ctypes.c_void_p(first), ctypes.c_size_t(huge_pages.SIZE)
        done = ctypes.CDLL(None).madvise(*where, huge_pages.MADV_COLLAPSE) == 0
        del part
    return done


HUGE_PAGES = pytest.mark.skipif(
    sys.platform != "linux" or not is_possible(),
    reason="this system gives no huge pages on demand",
)


@HUGE_PAGES
@pytest.mark.parametrize("parent", ["itself", "another"])
def test_only_the_named_process_pays_for_them(parent):
    """What it holds is in huge pages then, all but a rest at both ends."""
    named = os.getpid() if parent == "itself" else os.getppid()
    env = os.environ | {huge_pages.VARIABLE: str(named)}
    command = [sys.executable, "-c", PROGRAM]
    said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (int(said.stdout) >= 28) == (parent == "itself"), said.stderr


@HUGE_PAGES
def test_live_ranks_of_a_test_are_forked_from_huge_pages():
    """The fork server imports the module last, when all else is there."""
    with Ranks(1) as ranks:
        (pid,) = ranks.run("import os; os.getppid()", quiet=True)
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    megabytes = int(re.search(r"AnonHugePages: +(\d+)", rollup)[1]) // 2**10
    assert megabytes > 100  # torch alone makes 140
