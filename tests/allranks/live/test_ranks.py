"""Live ranks: results, output, state and reports, through the Python API."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from multiprocessing.connection import Connection

import psutil
import pytest
import torch
import torch.distributed as dist

from allranks import Ranks, RanksError
from allranks.live.processes import RankProcesses


@pytest.fixture(scope="module")
def ranks():
    """Yield four ranks for the whole module; after a failing test they are fresh."""
    with Ranks(4) as ranks:
        yield ranks


def sum_of_ranks(offset):
    """Return the all-reduced rank numbers, plus an offset."""
    x = torch.full((2,), float(dist.get_rank()))
    dist.all_reduce(x)
    return x + offset


def test_a_function_runs_on_every_rank_and_its_results_come_back(ranks):
    """Functions travel by value; results are Python objects, in rank order."""
    results = ranks.run(sum_of_ranks, 1)
    assert [r.tolist() for r in results] == [[7.0, 7.0]] * 4
    assert ranks.run(lambda: dist.get_rank() ** 2) == [0, 1, 4, 9]


def test_source_runs_in_a_namespace_that_lasts(ranks):
    """A cell sees earlier variables, and rank, world_size, device, torch and dist."""
    ranks.run("y = rank * 10")
    assert ranks.run("y, world_size, local_rank, device.type, dist.get_rank()") == [
        (10 * r, 4, r, "cpu", r) for r in range(4)
    ]


def test_the_environment_is_torchruns(ranks):
    """Code that reads torchrun's variables works on live ranks."""
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"]
    got = ranks.run(lambda: [os.environ[n] for n in names])
    assert got == [[str(r), str(r), "4", "4", "0"] for r in range(4)]


def test_ranks_see_the_parents_environment_of_now(monkeypatch):
    """Ranks get a variable that was set after the fork server had started."""
    with Ranks(1):
        monkeypatch.setenv("ALLRANKS_TEST", "late")
        with Ranks(1) as ranks:
            assert ranks.run("import os; os.environ.get('ALLRANKS_TEST')") == ["late"]


@pytest.mark.skipif(sys.platform != "linux", reason="no fork server")
def test_what_the_fork_server_imported_is_frozen(ranks):
    """Garbage collection skips only what was imported before the fork."""
    counts = ranks.run("import gc\n(gc.get_freeze_count() > 100_000, gc.isenabled())")
    assert counts == [(True, True)] * len(counts)


def test_output_is_folded_in_rank_order(ranks, capsys):
    """Equal outputs are printed once, and each line begins with its ranks."""
    ranks.run("print('even' if rank % 2 == 0 else f'odd\\n{rank}')")
    assert capsys.readouterr().out == (
        "ranks 0 and 2: even\nrank 1: odd\nrank 1: 1\nrank 3: odd\nrank 3: 3\n"
    )
    ranks.run("print(rank)", quiet=True)
    assert capsys.readouterr().out == ""
    assert ranks.outputs == ["0\n", "1\n", "2\n", "3\n"]


def test_output_of_children_and_warnings_is_output(ranks, capsys):
    """What a subprocess or a warning writes to the terminal is printed as well."""
    ranks.run("import os, warnings\nos.system('echo child')\nwarnings.warn('careful')")
    out = capsys.readouterr().out
    assert "ranks 0–3: child" in out
    assert "UserWarning: careful" in out


def test_on_runs_on_a_subset_only(ranks):
    """Only the chosen ranks run and return a result; the others keep their state."""
    ranks.run("z = 0")
    assert ranks.run("z = rank + 100\nz", on=[2, 0]) == [100, 102]
    assert ranks.run("z") == [100, 0, 102, 0]


@pytest.mark.parametrize("on", [[4], [-1], [0, 9]])
def test_on_refuses_ranks_that_do_not_exist(ranks, on):
    """The error names the rank and the range."""
    with pytest.raises(ValueError, match=r"no rank (4|-1|9): ranks go from 0 to 3"):
        ranks.run("1", on=on)


def test_a_failing_rank_brings_its_traceback_and_where_the_others_wait(ranks):
    """One exception reports both, and its traceback shows frames of the cell only."""
    cell = "\nif rank == 1:\n    raise KeyError('lost')\ndist.barrier()"
    with pytest.raises(RanksError) as caught:
        ranks.run_cell(cell, "ranks cell 7")
    report = str(caught.value)
    assert set(caught.value.errors) == {1}
    assert "KeyError: 'lost'" in report
    assert 'File "ranks cell 7", line 3, in <module>\n      raise KeyError' in report
    assert "ranks 0, 2 and 3 wait in `dist.barrier()` at cell line 4" in report
    assert "allranks" not in report and "site-packages" not in report


def test_a_hang_ends_at_the_timeout_and_says_who_waits_where(ranks):
    """Three ranks wait, one has finished, and the error tells them apart."""
    start = time.monotonic()
    with pytest.raises(RanksError) as caught:
        ranks.run_cell(
            "\nx = 1\nif rank != 1:\n    dist.barrier()", "ranks cell 3", timeout=1
        )
    assert time.monotonic() - start < 5
    assert str(caught.value) == (
        "timeout after 1 s\n"
        "ranks 0, 2 and 3 wait in `dist.barrier()` at cell line 4\n"
        "rank 1 finished"
    )


def test_a_hang_shows_what_was_printed_before_it(ranks, capsys):
    """Output from before the hang is printed, because it is the best hint."""
    with pytest.raises(RanksError, match=r"timeout"):
        ranks.run("print('here')\nif rank == 0:\n    dist.barrier()", timeout=1)
    assert "ranks 0–3: here" in capsys.readouterr().out


def test_a_rank_that_computes_is_told_from_one_that_waits(ranks):
    """The report says that a busy rank runs, and that the others wait."""
    with pytest.raises(RanksError) as caught:
        ranks.run("if rank == 0:\n    while True: pass\ndist.barrier()", timeout=1)
    assert "rank 0 runs `while True: pass`" in str(caught.value)
    assert "ranks 1–3 wait in `dist.barrier()`" in str(caught.value)


def test_a_failure_waits_for_ranks_that_still_compute(ranks):
    """If a second rank fails 1.5 seconds later, its error is in the report too."""
    cell = """
    import time
    if rank == 0:
        raise ValueError("early")
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        pass
    raise ValueError("late")
    """
    with pytest.raises(RanksError) as caught:
        ranks.run(textwrap.dedent(cell), on=[0, 1], timeout=30)
    assert "late" in caught.value.errors[1]


def test_after_a_failure_that_leaves_somebody_waiting_ranks_are_fresh(ranks, capsys):
    """The next cell finds no variables, and a line says why, but only once."""
    ranks.run("kept = 1")
    with pytest.raises(RanksError):
        ranks.run("if rank: dist.barrier()\n1 / 0")
    capsys.readouterr()
    assert ranks.run("'kept' in globals()") == [False] * 4
    assert "fresh ranks: the variables of earlier cells are gone" in (
        capsys.readouterr().out
    )
    ranks.run("1")
    assert capsys.readouterr().out == ""  # said once


FAILURES = {
    "on all ranks alike": "1 / 0",
    "a name that is misspelled": "undefined_name",
    "on one rank, while the others finish": "if rank == 1: raise ValueError(1)",
    "after a collective of all": "dist.barrier()\nraise ValueError(rank)",
    "sys.exit": "import sys; sys.exit(4)",
    "a result that cannot travel": "(i for i in [1])",
}


@pytest.mark.parametrize("cell", FAILURES.values(), ids=FAILURES)
def test_a_failure_that_leaves_nobody_waiting_keeps_all(ranks, cell, capsys):
    """Ranks and variables are kept, and the group still works."""
    before = ranks.run("import os; kept = [rank]; os.getpid()")
    with pytest.raises(RanksError):
        ranks.run(cell)
    capsys.readouterr()
    assert ranks.run("dist.barrier(); kept, os.getpid()") == [
        ([rank], before[rank]) for rank in range(4)
    ]
    assert capsys.readouterr().out == ""


def test_ranks_that_are_out_of_step_are_not_kept(ranks, capsys):
    """A collective that some ranks have begun would be taken for the next one."""
    ranks.close()  # so that the count begins at 0
    ranks.run("kept = 1")
    with pytest.raises(RanksError, match="ranks 0, 2 and 3 finished"):
        ranks.run(
            "if rank == 1: raise ValueError(1)\n"
            "work = dist.all_reduce(torch.ones(1), async_op=True)"
        )
    capsys.readouterr()
    assert ranks.run("'kept' in globals()") == [False] * 4
    said = capsys.readouterr().out
    assert said == (
        "(fresh ranks, since ranks 0, 2 and 3 have joined 1 collective, rank 1 has "
        "joined 0: the variables of earlier cells are gone)\n"
    )


CUT = """
import contextlib, os, socket
for fd in map(int, os.listdir("/proc/self/fd")):
    with contextlib.suppress(OSError):  # it is no socket, or not connected
        one = socket.socket(fileno=os.dup(fd))
        if rank == 1 and one.family == socket.AF_INET and one.getpeername():
            one.shutdown(socket.SHUT_RDWR)  # the network fails
raise ValueError
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_ranks_whose_group_is_broken_are_not_kept(ranks, capsys):
    """All are in step, and nobody waits, but the next barrier would fail."""
    with pytest.raises(RanksError, match="ValueError"):
        ranks.run(CUT)
    capsys.readouterr()
    assert ranks.run("dist.barrier(); 1") == [1] * 4
    assert "fresh ranks" in capsys.readouterr().out


def test_an_endless_loop_is_stopped_and_costs_nothing(ranks):
    """Python code obeys an interrupt, so a timeout there keeps the variables."""
    ranks.run("kept = rank")
    with pytest.raises(RanksError, match=r"timeout after 0.5 s\nranks 0–3 run `while"):
        ranks.run("while True: pass", timeout=0.5)
    assert ranks.run("kept") == [0, 1, 2, 3]


def test_a_typo_costs_the_ranks_nothing(ranks):
    """Syntax is checked before anything is sent, so the ranks keep their state."""
    ranks.run("kept = 1")
    with pytest.raises(SyntaxError):
        ranks.run("def f(:")
    assert ranks.run("kept") == [1] * 4


DEATHS = {
    "SIGSEGV": ("import ctypes; ctypes.string_at(0)", "was killed by SIGSEGV"),
    "SIGKILL": ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    "SIGABRT": ("os.abort()", "was killed by SIGABRT"),
    "exit": ("os._exit(3)", "ended its process with exit code 3"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_death_is_told_with_its_cause_and_native_stderr(ranks, death):
    """The error has the signal or exit code, the line, and the last native output."""
    how, words = DEATHS[death]
    cell = f"import os\nif rank == 2:\n    os.write(2, b'last words')\n    {how}"
    with pytest.raises(RanksError) as caught:
        ranks.run(cell)
    assert set(caught.value.deaths) == {2}
    assert f"rank 2 {words}" in str(caught.value)
    assert "last words" in str(caught.value)
    if death in ("SIGSEGV", "SIGABRT"):
        assert f"in `{how}` at cell line 4" in str(caught.value)


def test_a_death_between_two_cells_is_reported_by_the_next(ranks):
    """The next cell raises at once and does not wait for the dead rank."""
    pids = ranks.run("import os; os.getpid()")
    os.kill(pids[3], signal.SIGKILL)
    with pytest.raises(RanksError, match="rank 3 was killed by SIGKILL"):
        ranks.run("1", timeout=20)


def test_sys_exit_is_an_error_of_the_cell(ranks):
    """A rank that calls sys.exit raises an error, so it does not vanish silently."""
    with pytest.raises(RanksError, match="SystemExit: 4"):
        ranks.run("import sys; sys.exit(4)")


def test_results_that_cannot_travel_are_refused_with_a_sentence(ranks):
    """A result that cannot be pickled is refused in a sentence with its type."""
    with pytest.raises(RanksError, match="generator cannot leave its rank"):
        ranks.run("(i for i in [1])")


@pytest.mark.parametrize(
    ("world_size", "device", "sentence"),
    [
        (0, "cpu", "0 ranks: the number must be 1 to 64"),
        (-2, "cpu", "-2 ranks: the number must be 1 to 64"),
        (65, "cpu", "65 ranks: the number must be 1 to 64"),
        (2.0, "cpu", "must be an integer, not 2.0"),
        (True, "cpu", "must be an integer, not True"),
        (2, "quantum", "device 'quantum': this machine has"),
    ],
)
def test_impossible_ranks_are_refused_with_a_sentence(world_size, device, sentence):
    """Each sentence names the value and the bound."""
    with pytest.raises(ValueError, match=sentence):
        Ranks(world_size, device)


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    """The error is ours, before NCCL can say "Duplicate GPU detected"."""
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: gpu)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="4 ranks need 4 GPUs, one each; this machine"):
        Ranks(4, "cuda")


def test_windows_is_told_about_wsl(monkeypatch):
    """On Windows, a sentence recommends WSL2 instead of an AttributeError on fork."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(RuntimeError, match="open this book inside WSL2"):
        Ranks(2)


def test_spawned_ranks_work_too(monkeypatch):
    """Ranks can also be spawned, as on macOS."""
    monkeypatch.setattr("allranks.live.processes.start_method", lambda: "spawn")
    with Ranks(2) as ranks:
        assert [r.tolist() for r in ranks.run(sum_of_ranks, 0)] == [[1.0, 1.0]] * 2


def test_two_groups_live_side_by_side():
    """Groups share neither ports nor names, so several notebooks can run at once."""
    with Ranks(2) as a, Ranks(3) as b:
        a.run("v = 'a'")
        b.run("v = 'b'")
        assert a.run("dist.barrier(); v, world_size") == [("a", 2)] * 2
        assert b.run("dist.barrier(); v, world_size") == [("b", 3)] * 3


def test_a_script_without_a_main_guard_can_have_ranks(tmp_path):
    """Ranks never run the caller's file, so they need no ``if __name__``."""
    script = tmp_path / "plain.py"
    script.write_text(
        "from allranks import Ranks\n"
        "print('once')\n"
        "with Ranks(2) as ranks:\n"
        "    print(ranks.run('rank'))\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "once\n[0, 1]\n", done.stderr


def test_closing_ends_the_ranks_and_their_children(all_gone):
    """Processes that a rank has started end with it."""
    with Ranks(2) as ranks:
        ranks.run(
            "import subprocess, sys\nchild = subprocess.Popen(['sleep', '100'])\n"
        )
        pids = ranks.run("import os; [os.getpid(), child.pid]")
        processes = [psutil.Process(pid) for pair in pids for pid in pair]
    all_gone(processes)


def test_nothing_is_left_on_disk(tmp_path, monkeypatch):
    """A group's folder is deleted when the group ends, also after a failure."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Ranks(2) as ranks:
        assert list(tmp_path.iterdir())
        with pytest.raises(RanksError):
            ranks.run("1 / 0")
        ranks.run("1")
    assert not list(tmp_path.iterdir())


def test_a_failed_start_is_reported_and_leaves_nothing(monkeypatch):
    """An error while the group forms is raised, and its processes are gone."""
    started = []  # ids, because a rank may be gone before the test looks at it
    original = RankProcesses.__init__

    def init(self, *args):
        original(self, *args)
        started.extend(process.pid for process in self.processes)

    monkeypatch.setattr(RankProcesses, "__init__", init)
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "bogus")
    with pytest.raises(RanksError, match=r"ranks 0–1:[^ö]*TORCH_DISTRIBUTED_DEBUG"):
        Ranks(2)
    assert len(started) == 2
    deadline = time.monotonic() + 10
    while left := [pid for pid in started if psutil.pid_exists(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_an_interrupt_right_after_the_job_left_stops_the_ranks(ranks, monkeypatch):
    """No rank goes on unwatched, though the parent had not begun to wait."""
    ranks.run("step = 0")
    send = Connection.send

    def sends_and_is_interrupted(conn, job):
        send(conn, job)
        if "while True" in str(job) and conn is ranks._crew.conns[-1]:
            time.sleep(0.2)  # until the ranks are at it
            raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "send", sends_and_is_interrupted)
    with pytest.raises(RanksError, match="interrupted\nranks 0–3 run `while"):
        ranks.run("while True: step += 1")
    assert ranks.run("step > 0") == [True] * 4
