"""Who waited in a collective or for a message, where, and for whom."""

from allranks.rehearse.failures import TIMEOUT, waits
from allranks.rehearse.records import BegunCollective, Failure, Record


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


def test_who_failed_otherwise_waited_for_nobody():
    """Its last call was done."""
    assert list(waits([rank(0, call(3), "ValueError"), rank(1, call(3))])) == []
