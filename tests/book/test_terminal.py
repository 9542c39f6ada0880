"""A failing torchrun's output is recorded whole, compares equal, and is folded."""

import doctest
import re

import pytest

from allranks.base.paths import ROOT
from book._ext.paper.readable import readable
from book._ext.runs import records, terminal
from tests.book.test_extensions import build, words

__all__ = ["build"]  # the fixture

RUNS = ROOT / "book" / "_runs"
# From two runs on two machines; another rank failed first, and one had not ended yet.
HERE = """\
W1122 13:29:33.289000 11892 torch/distributed/run.py:874] \n\
W1122 13:29:33.289000 11892 torch/distributed/run.py:874] Setting OMP_NUM_THREADS
epochs 0: must be above 0
epochs 0: must be above 0
W1122 13:29:37.340000 11892 torch/x/api.py:1028] Sending process 874 closing signal
E1122 13:29:37.373000 11892 torch/x/api.py:1002] failed (exitcode: 1) local_rank: 0 \
(pid: 11897) of binary: /opt/job/.venv/bin/python3
Traceback (most recent call last):
  File "/opt/job/.venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
             ^^^^^^
  File "/opt/job/.venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1028
    elastic_launch(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n\
============================================================
scripts/ch5_ddp.py FAILED
Failures:
[1]:
  time      : 2026-11-22_13:29:37
  host      : node-7
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 874)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 874
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_13:29:37
  host      : node-7
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 11897) \n\
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org
============================================================
"""
THERE = """\
[W0101 09:00:00 socket.cpp:469] [c10d] The hostname of the client cannot be retrieved.
W0101 09:00:00.100000 7 torch/distributed/run.py:874] Setting OMP_NUM_THREADS
epochs 0: must be above 0
E0101 09:00:01.200000 7 torch/x/api.py:1002] failed (exitcode: 1) local_rank: 1 \
(pid: 9) of binary: /opt/python/bin/python
Traceback (most recent call last):
  File "/opt/python/bin/torchrun", line 10, in <module>
    sys.exit(main())
             ~~~~^^
  File "/opt/python/lib/python3.13/site-packages/torch/distributed/run.py", line 1028
    elastic_launch(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n\
============================================================
scripts/ch5_ddp.py FAILED
Failures:
[1]:
  time      : 2026-01-01_09:00:01
  host      : other
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 8) \n\
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_09:00:01
  host      : other
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 9) \n\
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org
============================================================
"""


def test_a_second_run_and_another_machine_count_as_the_same():
    """Times, ids, hosts, folders and the order of ranks don't count."""
    here, there = terminal.stand_in(HERE), terminal.stand_in(THERE)
    assert terminal.same(here, there)
    for word in ("1122", "11897", "11892", "node-7", "/work", "2026-11"):
        assert word not in here
    assert "process 4002 closing" in here and "PID 4002" in here
    # 874 in run.py:874 is a line number, though it looks like a process id.
    assert "(pid: 4001)" in here and "run.py:874]" in here
    assert terminal.stand_in(here) == here
    merged = here.replace("above 0\n", "above 0", 1).replace(
        "above 0\nW", "above 0\n\nW"
    )
    assert merged != here and terminal.same(merged, there)
    newer = re.sub(r"(?<=run\.py:)874|(?<=run\.py\", line )\d+", "982", here)
    newer = newer.replace("  elastic_launch", "  result = launch")
    assert newer != here and terminal.same(newer, there)
    assert terminal.of_ranks(merged) == "epochs 0: must be above 0"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epochs 0: must", "epochs 1: must"),
        ("exitcode  : 1 (", "exitcode  : 2 ("),
        ("(exitcode: 1)", "(exitcode: -9)"),
        ("run.py", "walk.py"),
        ("Setting OMP_NUM_THREADS", "Nothing"),
        ("Root Cause", "Cause"),
    ],
)
def test_another_failure_does_not(old, new):
    """A different failure isn't taken for the one that the page shows."""
    here = terminal.stand_in(HERE)
    assert not terminal.same(here, here.replace(old, new))


def test_the_examples_in_the_docstrings_hold():
    """Every example in the module gives what it says."""
    result = doctest.testmod(terminal)
    assert result.attempted and not result.failed


COMMAND = records.Command("A=1 torchrun scripts/x.py --epochs 0", 1)
RUN = f"(launch_terminal)=\n## T\n\n```{{run}} {COMMAND.line}\n:exit: 1\n```\n"
RECORD = f"$ {COMMAND.line}\nexit 1\n{terminal.stand_in(HERE)}\n"


def test_a_page_shows_the_ranks_lines_and_folds_the_whole(build):
    """The ranks' line shows once; a <details> holds all, and paper says where it is."""
    html, warnings = build(RUN, **{f"book/_runs/{COMMAND.record}": RECORD})
    assert not warnings
    first, _, rest = html.partition("<details")
    assert words(first).count("epochs 0: must be above 0") == 1
    assert "Root Cause" not in words(first)
    lines = len(terminal.stand_in(HERE).splitlines())
    folded, _, note = rest.partition("</details>")
    assert f"<summary>The whole terminal, {lines} lines</summary>" in folded
    assert words(folded).count("epochs 0: must be above 0") == 2
    assert "Root Cause (first observed failure)" in words(folded)
    assert 'href="#launch-terminal"' in note
    paper = words(readable(html))
    assert "Root Cause" not in paper
    assert f"The whole terminal, {lines} lines: book/_runs/{COMMAND.record}" in paper


def test_a_terminal_may_stand_open(build):
    """With :open:, the whole output is shown, for a section that is about it."""
    page = RUN.replace(":exit: 1", ":exit: 1\n:open:")
    html, warnings = build(page, **{f"book/_runs/{COMMAND.record}": RECORD})
    assert not warnings
    assert "<details" not in html and "Root Cause" in words(html)


def failing() -> list[records.Command]:
    """Return every torchrun command of the book that fails."""
    pages = [path.read_text("utf8") for path in sorted(ROOT.glob("book/*.md"))]
    return [c for page in pages for c in records.commands(page) if c.terminal]


def test_every_failing_torchrun_of_the_book_has_its_whole_terminal():
    """Records are not abridged: they have the notice, the traceback and the table."""
    assert len(failing()) >= 5
    for command in failing():
        ranks, own = terminal.split(records.read(RUNS, command))
        assert ranks, command.line
        for word in ("OMP_NUM_THREADS", "run.py", "Root Cause", "exitcode", "(pid: 40"):
            assert any(word in line for line in own), (command.line, word)


def test_the_lesson_shows_what_it_says():
    """Rank 1 is the cause, rank 0 was ended, and @record fills in the traceback."""
    plain, recorded = [c for c in failing() if "fails.py" in c.line]
    for command, told in (plain, False), (recorded, True):
        text = records.read(RUNS, command)
        others, _, root = text.partition("Root Cause (first observed failure):")
        assert "rank      : 1 (local_rank: 1)" in root and "exitcode  : 1 " in root
        assert "exitcode  : -15" in others and "closing signal SIGTERM" in others
        assert ("ValueError: no sample in batch 3" in root) is told
        assert ("error_file: <N/A>" in root) is not told
        assert "[rank1]: ValueError: no sample in batch 3" in others
