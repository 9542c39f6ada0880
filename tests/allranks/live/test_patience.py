"""Ranks that get no core are slow, not hung: progress is judged, and not a clock."""

import itertools
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from allranks import Ranks, RanksError
from allranks.live import collect, processes
from allranks.live.patience import GRACE, POLL_S, Patience

THREAD = """
import threading
def spin():
    while True:
        pass
thread = threading.Thread(target=spin, daemon=True)
thread.start()
print(flush=True)
thread.join()
"""
CHILD = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {THREAD!r}])
child.wait()
"""


@pytest.fixture
def two():
    """Yield two live ranks, of which 1 s without progress is a hang."""
    with Ranks(2) as ranks:
        ranks.stall = 1.0
        yield ranks


def is_ready(pid: int, whole: bool = True) -> bool:
    """Tell whether a thread of a process, or of a child of it, runs or would."""
    return bool({"R", "D"} & set(processes._states(pid, whole)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who is ready")
@pytest.mark.parametrize("code", [THREAD, CHILD], ids=["a thread", "a child's thread"])
def test_a_process_is_ready_if_any_of_its_threads_is(code):
    """The main thread sleeps, as it does in a collective while gloo's thread works."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            assert is_ready(process.pid)
            assert not all(  # its main thread waits for the one that runs
                time.sleep(0.02) or is_ready(process.pid, whole=False) for _ in range(9)
            )
        finally:
            for child in processes.psutil.Process(process.pid).children():
                child.kill()
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who is ready")
def test_a_process_that_sleeps_is_not_ready():
    """Neither a sleep nor a process that has gone counts as progress."""
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        looks = [time.sleep(0.02) or is_ready(process.pid) for _ in range(9)]
        process.kill()
    assert not all(looks)
    assert not is_ready(process.pid)


@pytest.mark.parametrize(("later", "busy"), [("SS", False), ("RS", True)])
def test_a_thread_that_only_polls_is_no_progress(two, monkeypatch, later, busy):
    """Gloo's thread wakes 100 times a second, and a look may come just then."""
    two._crew.is_busy(0)  # from here on its time counts
    looks = iter(["SR", later])
    monkeypatch.setattr(processes, "_states", lambda pid, whole: iter(next(looks)))
    assert two._crew.is_busy(0) == busy


def crew(busy: bool = False, used: float = 0.0) -> SimpleNamespace:
    """Return what Patience asks of the processes of one rank, all of it constant."""
    return SimpleNamespace(
        is_busy=lambda rank: busy,
        used=[used],
        switches=lambda rank: 0,
        progress=lambda ranks: [0],
    )


def ticks(patience: Patience, failed: bool = False, seconds: float = POLL_S):
    """Tick until the waiting ends; return what ends it, and after which seconds."""
    for number in range(1, 10_000):
        if verdict := patience.tick(seconds, {0}, failed):
            return verdict, pytest.approx(number * seconds, abs=2 * POLL_S)
    return None


@pytest.mark.parametrize(
    ("state", "limits", "failed", "end"),
    [
        ({}, (3.0, None), False, ("late", 3.0)),
        ({"busy": True}, (3.0, None), False, ("late", 3.0)),
        ({}, (3.0, 1.0), False, ("stalled", 1.0)),
        ({}, (3.0, None), True, ("stalled", GRACE)),
        ({}, (3.0, 1.0), True, ("stalled", GRACE)),
        ({"busy": True}, (3.0, None), True, ("late", 3.0)),
        ({"busy": True}, (3.0, None, True), True, ("stalled", GRACE)),  # it spins
        ({"busy": True, "used": 1.0}, (3.0, 1.0), False, ("late", 3.0)),
        ({"busy": True}, (3.0, 1.0), False, ("late", 30.0)),  # it queues for a core
    ],
)
def test_what_ends_the_waiting(state, limits, failed, end):
    """The limit does, or that nothing moves: once a rank failed, or with a stall."""
    assert ticks(Patience(crew(**state), [0], *limits), failed) == end


def test_a_rank_that_is_switched_out_or_prints_goes_on():
    """The one starts the count of idle seconds again, the other the limit."""
    moving, switches = crew(), itertools.count()
    moving.switches = lambda rank: next(switches)
    assert ticks(Patience(moving, [0], 3.0, 1.0)) == ("late", 3.0)
    assert ticks(Patience(moving, [0], 3.0, 1.0), failed=True) == ("stalled", GRACE)
    reads = itertools.count()  # each 0.1 s; the rank prints once, at 1.5 s
    moving.progress = lambda ranks: [next(reads) >= 15]
    assert ticks(Patience(moving, [0], 2.0)) == ("late", 3.5)


def jumping(monkeypatch, seconds: float) -> None:
    """Let each look find that ``seconds`` have passed, as if there had been no core."""
    steps = iter(range(10**9))
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + seconds * next(steps), sleep=time.sleep
    )
    monkeypatch.setattr(collect, "time", clock)


def test_a_parent_without_a_core_calls_nothing_a_hang(two, monkeypatch):
    """However late a look comes, a hang takes several looks that see no progress."""
    two.stall = 2.0
    jumping(monkeypatch, seconds=10.0)
    monkeypatch.setattr(processes.RankProcesses, "switches", lambda *_: 0)
    job = "import time\ntime.sleep(0.3)\nrank"
    assert two.run(job, quiet=True, timeout=1e9) == [0, 1]


def test_the_limit_does_not_count_a_queue_for_a_core(two, monkeypatch):
    """Ranks that are ready, but get no processor time, have ten times as long."""
    monkeypatch.setattr(processes, "_states", lambda pid, whole: iter("SR"))
    assert two.run("import time\ntime.sleep(2)\nrank", quiet=True, timeout=1) == [0, 1]
    two.stall = None  # without it, the limit is a reader's own, in seconds
    with pytest.raises(RanksError, match="timeout after 1 s"):
        two.run("time.sleep(2)", quiet=True, timeout=1)


@pytest.mark.parametrize("keep_waiting", [None, lambda at: False], ids=["none", "no"])
def test_a_hang_ends_at_once_unless_somebody_keeps_waiting(two, keep_waiting):
    """Rank 1 waits for nobody, and the report says so long before the limit."""
    two.keep_waiting = keep_waiting
    with pytest.raises(RanksError, match="rank 1 waits in"):
        two.run("if rank:\n    dist.barrier()", quiet=True, timeout=1e9)


def test_who_keeps_waiting_does_so_until_the_limit(two):
    """It is told where all ranks wait; if it says so, they have their time."""
    told = []
    two.keep_waiting = lambda at: not told.append(at)
    two.stall = 0.3
    job = "import time\ntime.sleep(2)\nrank"
    assert two.run(job, quiet=True) == [0, 1]
    assert told  # on a crowded machine a rank may be too slow to say where it is
    assert all(set(at) == {0, 1} for at in told)
    assert any("`time.sleep(2)` at cell line 2" in text for text in told[0].values())
    with pytest.raises(RanksError, match="timeout after 1 s"):
        two.run("time.sleep(60)", quiet=True, timeout=1)


def test_the_report_says_what_was_told(two, tmp_path):
    """A rank may move on meanwhile; the report is of the look that decided."""
    fifo = tmp_path / "door"
    os.mkfifo(fifo)

    def open_door(at: dict[int, str]) -> bool:
        fifo.write_text("go on")
        time.sleep(0.3)  # so that rank 1 gets to the barrier
        return False

    two.keep_waiting, two.stall = open_door, 0.3
    job = f"if rank:\n    open({str(fifo)!r}).read()\ndist.barrier()"
    with pytest.raises(RanksError, match=r"rank 1 waits in .*open.* at cell line 2"):
        two.run(job, quiet=True, timeout=1e9)


@pytest.mark.parametrize(
    "step", ["print(i)", "dist.barrier()", "import os; os.write(2, b'x')"]
)
def test_the_limit_bounds_the_silence(step):
    """A training that goes on may take as long as it likes."""
    loop = f"import time\nfor i in range(12):\n    {step}; time.sleep(0.25)\n"
    with Ranks(2) as ranks:
        began = time.monotonic()
        ranks.run(loop, timeout=1.5, quiet=True)
        assert time.monotonic() - began > 3


def test_the_limit_that_nobody_chose_says_how_to_choose_it():
    """It is the first thing that a reader meets with a training of his own."""
    with Ranks(2, timeout=1) as ranks:
        with pytest.raises(RanksError) as caught:
            ranks.run("import time; time.sleep(60)", quiet=True)
        assert str(caught.value).startswith(
            "timeout after 1 s in which no rank printed or finished a collective; "
            "%%ranks --timeout 10 allows more\n"
        )
