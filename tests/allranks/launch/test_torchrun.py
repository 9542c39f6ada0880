"""A launch separates ranks' lines, quotes the one that failed, leaves no orphans."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from allranks import LaunchError, launch

HEAD = """
import os, sys, time
from datetime import timedelta
import torch.distributed as dist
timeout = timedelta(seconds=float(os.environ["GROUP_TIMEOUT_S"]))
dist.init_process_group("gloo", timeout=timeout)
rank = dist.get_rank()
"""
ALONE = "import os, time\n"  # where no rank needs the others: torch takes seconds


@pytest.fixture
def script(tmp_path):
    """Return a function that writes scripts, with or without a process group."""

    def make(body: str, head: str = HEAD):
        path = tmp_path / "specimen.py"
        path.write_text(head + textwrap.dedent(body))
        return path

    return make


def test_a_launch_gives_each_ranks_lines_and_nothing_else(script, capfd):
    """Lines never merge, arguments and environment arrive, and nothing is printed.

    On two unequal nodes, two agents form one group, and global ranks follow the node
    ranks.
    """
    names = ["OMP_NUM_THREADS", "GROUP_TIMEOUT_S", "EXTRA"]
    names += ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"]
    names += ["GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
    path = script(
        f"""
        for i in range(200): print(rank, i)
        dist.barrier()
        print(sys.argv[1:], *[os.environ[n] for n in {names}])
        """
    )
    run = launch(path, [1, 2], "--a", "b c", timeout=60, env={"EXTRA": "x"})
    assert run.exit_code == 0
    places = {0: "0 0 1", 1: "1 0 2", 2: "1 1 2"}
    assert run.lines == {
        rank: [*[f"{rank} {i}" for i in range(200)], f"['--a', 'b c'] 1 50 x 1 {place}"]
        for rank, place in places.items()
    }
    assert str(run).splitlines() == run.lines[0] + run.lines[1] + run.lines[2]
    assert capfd.readouterr() == ("", "")


def test_a_failure_is_told_in_the_failing_ranks_words(script):
    """The error is rank 1's traceback, not torchrun's report or rank 0's SIGTERM."""
    path = script("print('hi')\nif rank == 1: raise ValueError('boom')\ntime.sleep(60)")
    with pytest.raises(LaunchError) as caught:
        launch(path, 2, timeout=60)
    text = str(caught.value)
    assert text.startswith("specimen failed (exit code 1)\nrank 1:\n  Traceback")
    assert text.endswith("ValueError: boom")
    assert "rank 0" not in text and "ChildFailedError" not in text
    assert caught.value.exit_code == 1
    assert caught.value.launch.lines == {0: ["hi"], 1: ["hi"]}


def test_a_sentence_of_all_ranks_is_said_once(script):
    """A text in SystemExit, by which scripts refuse bad input, is reported once."""
    with pytest.raises(LaunchError) as caught:
        launch(script("raise SystemExit('no batch of size 0')", ALONE), 2)
    assert str(caught.value) == ("specimen failed (exit code 1)\nno batch of size 0")


def test_a_crash_names_its_signal_and_line(script):
    """A segmentation fault has no traceback, but its line is found nevertheless."""
    path = script(
        """
        if rank == 0:
            import ctypes
            ctypes.string_at(0)
        time.sleep(60)
        """
    )
    with pytest.raises(LaunchError) as caught:
        launch(path, 2)
    assert "rank 0 was killed by SIGSEGV" in str(caught.value)
    assert "`ctypes.string_at(0)` at specimen.py line 11" in str(caught.value)


def test_a_hang_ends_at_the_timeout_and_says_where_ranks_stood(script):
    """The error names the line of each rank, and no process of the launch is left."""
    path = script("print(os.getpid(), flush=True)\ntime.sleep(100)", ALONE)
    start = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        launch(path, 2, timeout=15)
    assert time.monotonic() - start < 40
    assert str(caught.value) == (
        "specimen did not end within 15 s\n"
        "ranks 0–1 stood at `time.sleep(100)` at specimen.py line 3"
    )
    lines = caught.value.launch.lines
    assert not any(psutil.pid_exists(int(lines[r][0])) for r in range(2))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_parent_leaves_no_launch(script, all_gone, signum):
    """Neither Ctrl-C nor a killed kernel leaves a launch behind."""
    path = script("time.sleep(100)", ALONE)
    code = f"from allranks import launch; launch({str(path)!r}, 2)"
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline, tree = time.monotonic() + 30, []
    while len(tree) < 3 and time.monotonic() < deadline:  # torchrun and two ranks
        time.sleep(0.1)
        tree = psutil.Process(parent.pid).children(recursive=True)
    time.sleep(1)
    tree = psutil.Process(parent.pid).children(recursive=True)
    os.kill(parent.pid, signum)
    parent.wait(30)
    all_gone(tree, seconds=20)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("ch0_nothing", 2), "there is no script 'ch0_nothing'; scripts/ has ch"),
        (("ch4_ranks", 0), "0 ranks on each of 1 nodes: both must be at least 1"),
        (("ch4_ranks", [2, 0]), "both must be at least 1"),
    ],
)
def test_wrong_use_gets_one_sentence(args, sentence):
    with pytest.raises(ValueError, match=sentence):
        launch(*args)
