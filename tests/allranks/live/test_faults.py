"""However the parent ends, its ranks end with it, so there are never orphans."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

STUCK = "%%ranks\nif rank:\n    dist.barrier()"
SPIN = "%%ranks\nwhile True:\n    pass"


def live_ranks(kernel, cell: str = "") -> list[psutil.Process]:
    """Start four ranks, leave them in ``cell``; return the kernel's descendants."""
    kernel.run("%ranks 4")
    if cell:
        kernel.start(cell)
        time.sleep(0.5)
    processes = kernel.descendants()
    assert len(processes) >= 6  # the fork server, its ranks and their watchdog
    return processes


@pytest.mark.parametrize("cell", ["", STUCK, SPIN], ids=["idle", "stuck", "spinning"])
def test_a_kernel_killed_with_sigkill_leaves_no_rank(kernel, all_gone, cell):
    """Nothing can clean up after SIGKILL, so the ranks have to notice it themselves."""
    processes = live_ranks(kernel, cell)
    kernel.process.kill()
    all_gone(processes)


@pytest.mark.parametrize("cell", ["", STUCK], ids=["idle", "stuck"])
def test_a_restarted_kernel_leaves_no_rank(kernel, all_gone, cell):
    """The restart button ends the ranks, during a hang as well as between cells."""
    processes = live_ranks(kernel, cell)
    kernel.manager.restart_kernel(now=bool(cell))
    all_gone(processes)


def test_a_kernel_shut_down_politely_leaves_no_rank(kernel, all_gone):
    """A shutdown by nbval, nbclient or JupyterLab's menu ends the ranks."""
    processes = live_ranks(kernel)
    kernel.manager.shutdown_kernel(now=False)
    all_gone(processes)


def test_an_interrupted_cell_leaves_no_rank(kernel, all_gone):
    """The stop button ends the ranks of the interrupted cell."""
    ranks = [
        p for p in live_ranks(kernel) if str(p.pid) in kernel.run("%ranks status")[0]
    ]
    msg_id = kernel.start(STUCK)
    time.sleep(0.5)
    kernel.manager.interrupt_kernel()
    kernel.finish(msg_id)
    assert len(ranks) == 4
    all_gone(ranks)


def test_the_folder_of_a_killed_kernel_is_removed(kernel, all_gone, tmp_path):
    """The ranks delete the folder, since the killed parent can't."""
    kernel.run(f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}")
    processes = live_ranks(kernel)
    assert list(tmp_path.glob("allranks-*"))
    kernel.process.kill()
    all_gone(processes)
    assert not list(tmp_path.glob("allranks-*"))


SCRIPT = """
import os, signal, sys
from allranks import Ranks
ranks = Ranks(3)
pids = ranks.run("import os, subprocess; c = subprocess.Popen(['sleep', '60']);"
                 "[os.getpid(), c.pid]")
print(*[pid for pair in pids for pid in pair], flush=True)
{end}
"""

ENDS = {
    "exception": "raise ValueError('the parent fails')",
    "end of file, never closed": "",
    "sys.exit": "sys.exit(2)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "os._exit": "os._exit(0)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_leaves_no_rank(end, all_gone):
    """Every way out of a program ends the ranks, and the children of ranks."""
    program = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(end=ENDS[end])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pids = [int(pid) for pid in program.stdout.readline().split()]
    assert len(pids) == 6
    processes = []
    for pid in pids:
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:  # it ended before we looked
            continue
    program.wait(20)
    if processes:
        all_gone(processes)


def test_a_parent_stopped_in_run_leaves_no_rank(all_gone):
    """Ctrl-C in a terminal ends ranks that hang."""
    code = (
        "from allranks import Ranks\n"
        "ranks = Ranks(2)\n"
        "print(*ranks.run('import os; os.getpid()'), flush=True)\n"
        "ranks.run('if rank: dist.barrier()')\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    processes = [psutil.Process(int(p)) for p in program.stdout.readline().split()]
    time.sleep(0.5)
    os.killpg(program.pid, signal.SIGINT)
    _, stderr = program.communicate(timeout=20)
    assert "rank 1 waits in `if rank: dist.barrier()`" in stderr
    assert program.returncode != 0
    all_gone(processes)
