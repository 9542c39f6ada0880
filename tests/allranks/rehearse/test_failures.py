"""Who waited in a collective or for whom, and whom Linux has ended."""

import re
import signal

import pytest

from allranks.rehearse import failures
from allranks.rehearse.__main__ import main
from allranks.rehearse.failures import TIMEOUT, waits
from allranks.rehearse.records import BegunCollective, Failure, Record
from tests.allranks.rehearse.examples import change, record
from tests.allranks.rehearse.running import SCRIPTS, sentences


def rank(number, last=None, error="", standing_line=""):
    """Return what a rank's record has of its end."""
    failure = Failure("", error, "train.py:9") if error else None
    about = {"rank": number, "pid": number, "standing_line": standing_line}
    return Record(**about, last_collective=last, error=failure)


def call(number, line="train.py:5", peer=None):
    """Return a call of four ranks."""
    op = "all_reduce" if peer is None else "recv"
    return BegunCollective(op, [0, 1, 2, 3], line, "0", number, peer)


def test_a_wait_names_who_came_and_where_the_others_were():
    """Two ranks wait in call 7; one is still before it, and one has failed."""
    late = f"[Rank 0] {TIMEOUT}: ..."
    records = [
        rank(0, call(7), late),
        rank(1, call(7, "train.py:6"), late),
        rank(2, call(6), standing_line="lib/train.py:30"),
        rank(3, call(6), "no such file"),
    ]
    (said,) = waits(records)
    assert said == (
        "ranks 0–1 waited at train.py:5 and train.py:6 in all_reduce, call 7 of ranks "
        "0–3, for ranks 2–3; rank 2 stood at train.py:30; rank 3 had failed at "
        "train.py:9"
    )


def test_a_message_is_waited_for_from_its_other_rank():
    """Each of two ranks waits for the other, in a call of its own."""
    late = f"[Rank 0] {TIMEOUT}: ..."
    records = [rank(0, call(1, peer=1), late), rank(1, call(1, peer=0), late)]
    first, second = waits(records)
    assert (
        "rank 0 waited at train.py:5 in recv, for rank 1; rank 1 was in recv" in first
    )
    assert "rank 1 waited at train.py:5 in recv, for rank 0" in second


def test_each_rank_that_waits_for_a_message_is_named():
    """Two messages from one rank have one number; a collective is told of once."""
    ranks = [record(rank) for rank in range(3)]
    for one in ranks[0], ranks[2]:
        one.error = Failure("DistBackendError", TIMEOUT)
        one.last_collective = call(1, "train.py:4", peer=1)
    assert [told.partition(" waited")[0] for told in waits(ranks)] == [
        "rank 0",
        "rank 2",
    ]
    for one in ranks[0], ranks[2]:
        change(one.last_collective, op="all_reduce", peer=None)
    (told,) = waits(ranks)
    assert told.startswith("ranks 0 and 2 waited at train.py:4 in all_reduce")


def test_who_failed_otherwise_waited_for_nobody():
    """Its last call was done."""
    assert list(waits([rank(0, call(3), "ValueError"), rank(1, call(3))])) == []


def test_the_report_begins_with_what_linux_has_ended(monkeypatch, capsys):
    """A process that is killed can say nothing itself."""
    counts = iter([3, 4])
    monkeypatch.setattr(failures, "num_killed", lambda: next(counts))
    assert main(["--gpus=1", str(SCRIPTS / "killed.py")]) == 128 + signal.SIGKILL
    said = sentences(capsys.readouterr().out)
    assert re.search(r"Rehearsal: exit code 137 after .* s; .* Linux ended 1", said)


def test_kills_are_counted(tmp_path):
    """Linux has one line of many for them."""
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 17\noom_kill 5\n", "utf8")
    assert failures.num_killed(counters) == 5


@pytest.mark.parametrize(
    ("ended", "error", "said"),
    [(True, None, 0), (False, Failure("", "own"), 0), (False, None, 1)],
)
def test_a_kill_of_somebody_else_is_not_told(ended, error, said):
    """Whoever was killed did not end by itself, and could not tell why."""
    records = [Record(error=Failure("", "own")), Record(ended=ended, error=error)]
    told = failures.killed_by_linux(2, records)
    assert ("Linux ended 2 of its processes" in told) == bool(said)


def test_a_system_that_counts_none_tells_none(tmp_path):
    """macOS has no such file."""
    assert failures.num_killed(tmp_path / "vmstat") == 0
