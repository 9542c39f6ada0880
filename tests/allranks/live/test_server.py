"""What lies beside a notebook, or stands in its environment, costs one sentence."""

import os
import subprocess
import sys
import tempfile

import pytest

from allranks import Ranks

# As a kernel does it: Python's own modules first, then the working directory.
KERNEL = """
import multiprocessing, os, queue, random, sys, tempfile
sys.path.insert(0, "")
from allranks import Ranks

for name in sys.argv[1:]:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = name
    try:
        print(Ranks(2).run("import random; [rank, random.randrange(1)]"))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""

FORKED = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
from allranks import Ranks

def child():
    try:
        ours.run("rank")
    except ValueError as error:
        print(error)
    with Ranks(2) as ranks:
        print(ranks.run("rank"), flush=True)

ours = Ranks(2)
if (pid := os.fork()) == 0:
    child()
    sys.exit()
assert os.waitpid(pid, 0)[1] == 0
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
print(Ranks(2).run("rank"))
inner = "from allranks import Ranks; import os; inner = Ranks(1); os.getpid()"
[pid] = ours.run(inner, on=[0])
os.kill(pid, signal.SIGKILL)
while len(list(Path(os.environ["TMPDIR"]).glob("pymp-*"))) > 1:
    time.sleep(0.02)  # the inner ranks' fork server tidies up
print(Ranks(2).run("rank"))
"""


def test_ranks_can_be_started_once_the_cause_is_gone(tmp_path):
    """A fork server that has died is replaced by another one.

    A file with the name of a module does no harm to either: it is the reader's, and
    Python's own module is needed all the same.
    """
    folder, program = tmp_path / "notebook", tmp_path / "kernel.py"
    for name in "random.py", "queue.py", "allranks/a.py":
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise OSError('the wrong module')\n")
    program.write_text(KERNEL)
    command = [sys.executable, str(program), "bogus", "OFF"]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=folder, **both)
    said, good = done.stdout.splitlines()  # two lines, without a traceback
    assert said.startswith("OSError: ranks cannot start: ")
    assert "TORCH_DISTRIBUTED_DEBUG" in said and good == "[[0, 0], [1, 0]]"


def test_an_interface_that_is_not_there_is_named(monkeypatch):
    """With those that are."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere9")
    told = r"^GLOO_SOCKET_IFNAME=nowhere9: this machine has .*\blo\b"
    with pytest.raises(ValueError, match=told):
        Ranks(2)


def test_a_working_directory_that_is_gone_is_named(tmp_path, monkeypatch):
    """It says what is missing, which "No such file or directory" does not."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    told = r"^the working directory has been deleted.*%cd"
    with pytest.raises(OSError, match=told):
        Ranks(2)


@pytest.mark.timeout(240)  # four fork servers, one after the other
def test_a_forked_process_has_ranks_of_its_own(tmp_path):
    """Its parent's go on; whichever ends first, the other can still start some.

    It is forked by ``os.fork``, by multiprocessing, or as a rank.
    """
    program = tmp_path / "program.py"
    program.write_text(FORKED)
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, str(program)]
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is too long for a socket
        env = {**os.environ, "TMPDIR": folder}
        done = subprocess.run(command, env=env, **both, timeout=200)
        left = [name for name in os.listdir(folder) if "inductor" not in name]
    assert done.returncode == 0, done.stdout
    *children, last, after_a_rank = done.stdout.splitlines()
    said, there = children[::2], children[1::2]
    assert there == ["[0, 1]"] * 2 and last == after_a_rank == "[0, 1]", done.stdout
    for sentence in said:
        assert sentence.startswith("these ranks answer process ")
        assert sentence.endswith("was forked from it: start Ranks(2) here")
    assert left == []
