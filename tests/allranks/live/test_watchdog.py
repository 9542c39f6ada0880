"""One process watches over all groups of a program, and over none that has ended."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil

from allranks import Ranks
from allranks.live.watchdog import WATCHDOG

PROGRAM = """
import os
import sys
import time
import psutil
from allranks import Ranks
from allranks.live.watchdog import WATCHDOG

first, ended = Ranks(2), Ranks(1)
folder = ended._crew._folder
ended.close()
folder.mkdir()  # as if another program had got this name
watchdog = psutil.Process(WATCHDOG.pid)
watchdog.kill()
watchdog.wait(20)
second = Ranks(1)
pids = [p.pid for ranks in (first, second) for p in ranks._crew.processes]
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(folder, child, WATCHDOG.pid, *pids, flush=True)
sys.stdin.read()
"""


def end(processes: list[psutil.Process]) -> None:
    """Leave nothing behind when a test fails."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_groups_share_a_watchdog():
    """A second group starts no second process, whether the first has ended or not."""
    with Ranks(1):
        pid = WATCHDOG.pid
        with Ranks(1):
            assert WATCHDOG.pid == pid
    with Ranks(1):
        assert WATCHDOG.pid == pid
    assert psutil.Process(pid).is_running()


def test_ranks_of_all_groups_end_with_a_killed_program(all_gone):
    """A new watchdog knows the older groups, too; what has ended is left alone.

    A process that the program has forked, and that lives on, makes no difference.
    """
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    folder, *pids = program.stdout.readline().split()
    child, *processes = [psutil.Process(int(pid)) for pid in pids]
    assert len(processes) == 4
    try:
        # Otherwise idle ranks would end by themselves.
        for process in processes[1:]:
            process.suspend()
        program.kill()
        program.communicate()
        all_gone(processes)
        assert child.is_running()
    finally:
        end([child, *processes])
    assert os.path.isdir(folder)
    Path(folder).rmdir()
