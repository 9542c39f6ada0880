"""The stop button, pressed twice and anywhere: no wrong value, and no orphan."""

import os
import signal
import time

import psutil
import pytest

from tests.allranks.live.test_manners import wait_for

BODIES = {
    "spin": "while True: pass",
    "barrier": "if rank: dist.barrier()",
    "sleep": "import time; time.sleep(100)",
}


def press(kernel, *gaps: float) -> None:
    """Send SIGINT to the kernel, again after each gap in seconds."""
    for gap in (0.0, *gaps):
        time.sleep(gap)
        os.kill(kernel.process.pid, signal.SIGINT)


@pytest.fixture
def four(shared_kernel):
    """Yield the kernel with four fresh ranks."""
    assert shared_kernel.run("%ranks 4")[0].endswith("ranks 0–3 on cpu\n")
    return shared_kernel


@pytest.mark.parametrize("gap", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("body", BODIES)
def test_two_presses_leave_no_answer_for_a_later_cell(four, body, gap, tmp_path):
    """Each later cell shows its own values, and nothing waits for its time limit."""
    begun = f"open(f'{tmp_path}/{{rank}}', 'w').close()"
    msg_id = four.start(f"%%ranks\n{begun}\n{BODIES[body]}")
    wait_for(lambda: len(list(tmp_path.iterdir())) == 4)
    press(four, gap)
    _, error = four.finish(msg_id)
    # The second may meet IPython itself, as it shows the error of the first.
    assert error.startswith("RanksInterrupted: interrupted") or "allranks/" not in error
    for word in "first", "second":
        start = time.monotonic()
        printed, error = four.run(f"%%ranks\n'{word}', rank")
        told = [line for line in printed.splitlines() if line[:5] != "(fres"]
        assert told == [f"rank {r}: ('{word}', {r})" for r in range(4)], error
        assert time.monotonic() - start < 30  # the limit is 60


def ranks_below(kernel) -> list[psutil.Process]:
    """Return the kernel's processes that have a rank's number of file descriptors."""
    return [p for p in kernel.descendants() if _is_rank(p)]


def _is_rank(process: psutil.Process) -> bool:
    try:
        return "/allranks-" in os.readlink(f"/proc/{process.pid}/fd/1")
    except OSError:
        return False


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_a_stopped_start_or_end_leaves_no_rank_and_no_traceback(four, after_s):
    """Whenever the press comes, the ranks are all there, or none of them."""
    for command in "%ranks 4", "%ranks stop", "%ranks 2":
        msg_id = four.start(command)
        time.sleep(after_s)
        press(four)
        printed, error = four.finish(msg_id)
        # At once it may meet IPython itself, before the command begins.
        assert "allranks/" not in printed + error, (command, printed, error)
        ours = error.startswith("RanksInterrupted: interrupted")
        assert ours or error == "" or after_s == 0, (command, error)
        told, _ = four.run("%%ranks --quiet --out n\n1")
        if "there are no ranks yet" in told:
            wait_for(lambda: not ranks_below(four), 10)
        else:
            num_ranks = len(ranks_below(four))
            assert four.run("print(len(n))") == (f"{num_ranks}\n", ""), command


def test_the_extension_may_be_loaded_twice(four):
    """Readers run the first cell again; nothing is said, and the ranks live on."""
    four.run("%%ranks\nkept = 1")
    assert four.run("%load_ext allranks") == ("", "")
    assert four.run("%%ranks\nkept") == ("ranks 0–3: 1\n", "")


def test_a_kernel_that_ends_waits_for_nothing_of_ours(shared_kernel, all_gone):
    """No process is in its group or holds its stdout, or a shutdown would take 3 s.

    A shutdown by nbclient, nbval or JupyterLab's menu ends the ranks, and here the
    module's kernel, so this test is the last one.
    """
    kernel = shared_kernel
    kernel.run("%ranks 2")
    stdout = os.readlink(f"/proc/{kernel.process.pid}/fd/1")
    children = kernel.descendants()
    assert len(children) >= 4
    for child in children:
        assert os.getpgid(child.pid) != os.getpgid(kernel.process.pid), child
        held = [os.readlink(fd.path) for fd in os.scandir(f"/proc/{child.pid}/fd")]
        assert stdout not in held, child
    kernel.manager.shutdown_kernel(now=False)
    all_gone(children)
