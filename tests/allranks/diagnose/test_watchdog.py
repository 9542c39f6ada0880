"""NCCL's watchdogs are compared: which rank is in which collective?"""

import pytest

from allranks.diagnose.answers import about_suspect, show
from allranks.diagnose.text import Log
from allranks.diagnose.watchdog import compared
from tests.allranks.diagnose.test_command import CASES, suspects_of

LINE = (
    "[rank{0}]:[E821 11:29:52.1 ProcessGroupNCCL.cpp:685] [{3}Rank {0}] Watchdog "
    "caught collective operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, "
    "Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)
GROUP = "PG ID 0 PG GUID 0(default_pg) "


def log(*reports, group=""):
    """Return a log in which each rank reports a SeqNum and an OpType."""
    return Log(("log", "\n".join(LINE.format(*one, group) for one in reports)))


@pytest.mark.parametrize("group", ["", GROUP, "PG 0 "])
def test_two_calls_under_one_number_are_named(group):
    """The sentence says which rank is in which call, with the sizes."""
    calls = (
        "ALLREDUCE, NumelIn=2, NumelOut=2",
        "_ALLGATHER_BASE, NumelIn=8, NumelOut=16",
    )
    text = compared(log((1, 1187, calls[1]), (0, 1187, calls[0]), group=group))
    assert text == (
        "At SeqNum 1187 rank 0 is in ALLREDUCE of 2 numbers, rank 1 is in "
        "_ALLGATHER_BASE of 8 numbers: the ranks make different calls, so each waits "
        "for the other."
    )


def test_ranks_at_other_numbers_are_named():
    """If the numbers differ, the smallest is the one to look at."""
    text = compared(log((0, 5, "ALLREDUCE"), (1, 6, "BROADCAST"), (2, 6, "BROADCAST")))
    assert text.startswith("Rank 0 is in ALLREDUCE (SeqNum 5), ranks 1, 2 are in BROAD")
    assert text.endswith("Compare what each of them calls as SeqNum 5.")


def test_the_rank_that_is_silent_is_named():
    """If all wait in one call, the one that reports nothing did not come."""
    text = compared(log(*((rank, 7, "ALLREDUCE") for rank in (0, 1, 3))))
    assert text.startswith(
        "Ranks 0, 1, 3 wait in the same ALLREDUCE (SeqNum 7). Rank 2"
    )
    assert "network" in compared(log((0, 7, "ALLREDUCE"), (1, 7, "ALLREDUCE")))


def test_nothing_is_said_of_one_rank_nor_across_groups():
    """One rank says nothing about others, nor do the numbers of two groups."""
    assert compared(log((0, 7, "ALLREDUCE"), (0, 8, "BROADCAST"))) == ""
    other = LINE.format(1, 9, "ALLREDUCE", "PG ID 1 PG GUID 3 ")
    both = LINE.format(0, 7, "BROADCAST", GROUP) + "\n" + other
    assert compared(Log(("log", both))) == "" == compared(Log(("log", "all is well")))


def test_the_answer_shows_it():
    """The command prints it with the case, before the cause."""
    text = log((0, 7, "ALLREDUCE"), (1, 7, "BROADCAST"))
    suspect, *_ = suspects_of(text, CASES)
    told = show(1, about_suspect(text, suspect), False)
    assert suspect.case.slug == "nccl-watchdog"
    assert told.index("Ranks: At SeqNum 7") < told.index("Cause: ")
