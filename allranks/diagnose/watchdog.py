"""Compare what NCCL's watchdogs say of several ranks: who is in which collective?

Each rank numbers its collectives (SeqNum), so two ranks that wait under one number must
be in one call. book/_static/diagnose.js takes the same steps.
"""

import re

from allranks.diagnose.search import TRIES
from allranks.diagnose.text import Log

WORK = "WorkNCCL(SeqNum="
BEFORE, AFTER = 200, 150  # letters around it that have the group, and the call
REPORT = re.compile(
    r"\[(?:(PG[^\[\]]{0,150}?),?)?Rank(\d{1,6})\][^\[\]]{0,100}WorkNCCL\(SeqNum=(\d{1,15}),"
    r"OpType=(\w{1,40})(?:,NumelIn=(\d{1,15}),NumelOut=\d)?",
    re.ASCII,
)


def compared(log: Log) -> str:
    """Return a sentence about two ranks or more whose watchdogs report, or ""."""
    groups: dict[str, dict[int, tuple]] = {}
    at = -1
    for _ in range(TRIES):
        if (at := log.find(WORK, at + 1)) < 0:
            break
        near = log.squeezed[max(0, at - BEFORE) : at + AFTER].decode(errors="replace")
        for group, rank, number, call, size in REPORT.findall(near):
            rank = int(log.rank(log.line_at(at)) or rank)
            report = int(number), call, int(size) if size else None
            groups.setdefault(group, {}).setdefault(rank, report)
    told = (sentence(reports) for reports in groups.values() if len(reports) > 1)
    return next(told, "")


def sentence(reports: dict[int, tuple]) -> str:
    """Say what two ranks or more of a group report: SeqNum, OpType, NumelIn."""
    calls: dict[tuple, list[int]] = {}
    for rank in sorted(reports):
        calls.setdefault(reports[rank], []).append(rank)
    numbers = sorted({number for number, _, _ in calls})
    if len(calls) == 1:
        ((number, call, _), ranks) = next(iter(calls.items()))
        silent = sorted(set(range(max(ranks))) - set(ranks))
        missing = (
            f"Rank {silent[0]} reports nothing, so look there."
            if len(silent) == 1
            else "Look for a rank that reports nothing, or else at the network."
        )
        text = f"{named(ranks)} wait in the same {call} (SeqNum {number}). {missing}"
    elif len(numbers) == 1:
        text = (
            f"At SeqNum {numbers[0]} {', '.join(map(inside, calls, calls.values()))}: "
        )
        text += "the ranks make different calls, so each waits for the other."
    else:
        text = ", ".join(map(inside, calls, calls.values(), [True] * len(calls)))
        text += ": the ranks are not at the same call. "
        text += f"Compare what each of them calls as SeqNum {numbers[0]}."
    return text[0].upper() + text[1:]


def inside(report: tuple, ranks: list[int], numbered: bool = False) -> str:
    """Say in which call some ranks are."""
    number, call, size = report
    verb = "is" if len(ranks) == 1 else "are"
    many = "" if size is None else f" of {size} number{'s' * (size != 1)}"
    return f"{named(ranks)} {verb} in {call}{many}" + numbered * f" (SeqNum {number})"


def named(ranks: list[int]) -> str:
    """Name some ranks.

    >>> named([1]), named([0, 2])
    ('rank 1', 'ranks 0, 2')
    """
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
