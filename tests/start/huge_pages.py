"""Put what a process holds into huge pages, so that forks of it are cheaper.

To fork, Linux copies an entry for each page of a process, and the child's end takes
them apart again: torch has 50,000 pages of 4 KiB, but 100 of 2 MiB. A child that writes
to a huge page still copies only 4 KiB of it. It takes half a second, which pays for a
worker of the tests: it starts hundreds of groups of live ranks.
"""

import ctypes
import os
import re
from pathlib import Path

VARIABLE = "ALLRANKS_HUGE_PAGES"  # the process whose fork server shall have them
SIZE = 2**21  # bytes of a huge page
MADV_COLLAPSE = 25  # since Linux 6.1; an older one refuses, and nothing changes
HEAP = re.compile(r"(\w+)-(\w+) rw-p 0+ 00:00 0 *(?:\[heap\])?$", re.MULTILINE)


def collapse() -> None:
    """Do so with each part of this process's memory that no file backs."""
    libc = ctypes.CDLL(None)
    for begin, end in HEAP.findall(Path("/proc/self/maps").read_text()):
        first = -(int(begin, 16) // -SIZE) * SIZE
        length = int(end, 16) // SIZE * SIZE - first
        if length > 0:
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), MADV_COLLAPSE)


if os.environ.get(VARIABLE) == str(os.getppid()):  # this is imported by the fork server
    collapse()
