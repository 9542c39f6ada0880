"""However the parent ends, its ranks end with it, so there are never orphans."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from allranks import Ranks
from tests.allranks.conftest import Kernel

# Rank 0 computes, ranks 1 and 2 wait for it, and rank 3 has nothing to do.
BUSY = """%%ranks
if rank == 0:
    while True: pass
elif rank < 3:
    dist.barrier()"""


def live_ranks(kernel, cell: str = "") -> list[psutil.Process]:
    """Start four ranks, leave them in ``cell``; return the kernel's descendants."""
    kernel.run("%ranks 4")
    if cell:
        kernel.start(cell)
        time.sleep(0.5)
    processes = kernel.descendants()
    assert len(processes) >= 6  # the fork server, its ranks and their watchdog
    return processes


def test_a_kernel_killed_with_sigkill_leaves_no_rank(kernel, all_gone, tmp_path):
    """Nothing can clean up after SIGKILL, so the ranks have to notice it themselves.

    Their watchdog deletes their folder.
    """
    kernel.run(f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}")
    processes = live_ranks(kernel, BUSY)
    assert list(tmp_path.glob("allranks-*"))
    kernel.process.kill()
    all_gone(processes)
    assert not list(tmp_path.glob("allranks-*"))


def test_a_restarted_kernel_leaves_no_rank(kernel, all_gone):
    """The restart button asks the kernel to end, and that ends the ranks."""
    processes = live_ranks(kernel)
    kernel.manager.restart_kernel(now=False)
    all_gone(processes)


SCRIPT = """
import os, signal, sys
from allranks import Ranks
from allranks.live.watchdog import WATCHDOG
ranks = Ranks(3)
pids = ranks.run("import os, subprocess; c = subprocess.Popen(['sleep', '60']);"
                 "[os.getpid(), c.pid]")
folders = len(os.listdir(os.environ["TMPDIR"]))
print(folders, WATCHDOG.pid, *[pid for pair in pids for pid in pair], flush=True)
{end}
"""

ENDS = {
    "by itself": ("raise ValueError('it joins no watchdog')", 1),
    "at once": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_leaves_nothing(end, all_gone, tmp_path):
    """Neither ranks and their children, nor a folder, whether Python tidies up or not.

    One folder is multiprocessing's, with the socket of the fork server, which removes
    it when nobody is left whom it could serve.
    """
    code, status = ENDS[end]
    program = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(end=code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    folders, *pids = map(int, program.stdout.readline().split())
    assert folders >= 2 and len(pids) == 7
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended before we looked
            processes.append(psutil.Process(pid))
    assert program.wait(20) == status
    if processes:
        all_gone(processes)
    deadline = time.monotonic() + 10
    while left := [*tmp_path.glob("allranks-*"), *tmp_path.glob("pymp-*")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


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


def test_ranks_held_for_the_debugger_end_with_a_killed_kernel(kernel, all_gone):
    """They are stopped by a signal, but not by that one alone."""
    processes = live_ranks(kernel)
    _, error = kernel.run("%%ranks\nif rank == 1: 1 / 0\ndist.barrier()")
    assert "wait in `dist.barrier()`" in error  # who has come there yet
    held = [p for p in processes if p.status() == psutil.STATUS_STOPPED]
    assert len(held) == 3
    kernel.process.kill()
    all_gone(processes)


def test_a_kernel_that_is_killed_with_its_group_leaves_nothing(
    tmp_path, monkeypatch, all_gone
):
    """As by a restart during a cell; whether it has ranks or not."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for cell in "%load_ext allranks", "%load_ext allranks\n%ranks 2":
        kernel = Kernel()
        kernel.run(cell)
        assert list(tmp_path.glob("pymp-*"))
        while not any(os.getsid(p.pid) == p.pid for p in kernel.descendants()):
            time.sleep(0.02)  # the fork server is only starting
        processes = kernel.descendants()
        kernel.close()
        all_gone(processes, 20)  # the fork server ends once it has imported torch
        deadline = time.monotonic() + 20
        while left := [*tmp_path.glob("allranks-*"), *tmp_path.glob("pymp-*")]:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)


def test_a_folder_with_too_long_a_name_is_named(tmp_path):
    """A socket's path may have about a hundred characters."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    told = run_limited("Ranks(2)", TMPDIR=str(folder))
    assert told.startswith(
        f"OSError: the folder for temporary files, {folder}, has too"
    )


def run_limited(code: str, **env: str) -> str:
    """Run a program; return the last line that it prints, on stdout or stderr."""
    command = [sys.executable, "-c", f"from allranks import Ranks\n{code}"]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env={**os.environ, **env}, text=True, **both)
    return done.stdout.splitlines()[-1]


def test_too_few_open_files_are_told_in_a_sentence():
    """It names the limit, the need and the command, before anything is started."""
    limit = (
        "import resource\n"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))\n"
    )
    told = run_limited(f"{limit}Ranks(24)")
    assert told.startswith("ValueError: 24 ranks need about ")
    assert "this process may have 64: raise the limit (ulimit -n 1024)" in told
    assert run_limited(f"{limit}print(Ranks(2).run('rank'))") == "[0, 1]"


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    """At the start, by the folder for temporary files; nothing is left in it."""

    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(
        OSError, match=f"no space left on the disk of {tmp_path}, where"
    ):
        Ranks(2)
    assert not list(tmp_path.glob("allranks-*"))


def test_a_disk_that_fills_up_is_named_by_the_rank_that_prints():
    """The kernel says only "No space left on device"; /dev/full says it to anybody."""
    code = (
        "import os, pathlib\nfrom allranks.live.stdout import Stdout\n"
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n"
        "Stdout(pathlib.Path('/room/allranks-1/0.out')).write('x')"
    )
    told = run_limited(code)
    assert told.startswith(
        "OSError: no space left on the disk of /room, where the output"
    )


def test_a_terminal_without_unicode_is_enough():
    """The dash of "ranks 0–1" is a plain one there, and other letters are escaped."""
    code = (
        "from allranks import Ranks\nranks = Ranks(2)\n"
        "ranks.run('print(\"\\u2192\")')\n"
        "ranks.run_cell('def f(): return 1/0\\nf()', 'cell')"
    )
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--colors=nocolor", "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
    )
    said = (done.stdout + done.stderr).decode("ascii")
    assert "ranks 0-1: \\u2192" in said, said
    assert "RanksError: ranks 0-1:" in said and "ZeroDivisionError" in said
    assert "UnicodeEncodeError" not in said


@pytest.mark.parametrize(
    "harm", ["import sys; sys.stdout.close()", "import builtins; builtins.print = None"]
)
def test_a_cell_that_breaks_printing_does_not_silence_the_next(harm, capsys):
    """A rank that is kept has to be able to show its values."""
    with Ranks(2) as ranks:
        ranks.run(harm)
        ranks.run_cell("7", "cell")
        assert capsys.readouterr().out == "ranks 0–1: 7\n"


def test_a_deleted_folder_is_told_and_not_taken_for_silence():
    """What the ranks print can no longer be read."""
    with Ranks(2) as ranks:
        folder = ranks._crew._folder
        shutil.rmtree(folder)
        with pytest.raises(OSError, match=f"{folder} has been deleted, and with it"):
            ranks.run("print(1)")


@pytest.mark.parametrize("end", ["pass", "raise ValueError('child')"])
def test_a_process_that_a_cell_forks_is_no_rank(end, capsys):
    """A child that leaves the cell, or raises, answers nothing in its rank's place."""
    raises = end != "pass"
    fork = f"""
        import os
        pid = os.fork()
        if pid == 0:
            {end}
        else:
            print("child ended with", os.waitpid(pid, 0)[1] >> 8)
    """
    with Ranks(2) as ranks:
        ranks.run(textwrap.dedent(fork))
        ranks.run("print('next', rank)")
    shown = capsys.readouterr().out
    assert f"child ended with {1 if raises else 0}" in shown
    assert ("ValueError: child" in shown) == raises
    assert shown.count("next") == 2
