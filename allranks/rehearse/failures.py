"""Who failed in a rehearsal, who waited for whom, and what the clinic knows of it.

If the laptop's memory ends before the virtual GPUs', Linux ends a process without a
word, so that is counted, too.
"""

import textwrap
from collections.abc import Iterator
from pathlib import Path

from allranks.base.report import describe_death, name_ranks
from allranks.clinic import folder
from allranks.diagnose.answers import about_suspect
from allranks.diagnose.command import CASES
from allranks.diagnose.suspects import diagnose
from allranks.diagnose.text import Log
from allranks.rehearse.lines import short
from allranks.rehearse.records import BegunCollective, Record, jobs
from allranks.rehearse.script_errors import HOST_MEMORY_CURE

MOST_WORDS = 400  # characters of an error
TIMEOUT = "Watchdog caught collective operation timeout"
VMSTAT = Path("/proc/vmstat")  # has a line "oom_kill N" since Linux 4.13


def failures(records: list[Record]) -> list[str]:
    """Return a line for each error or exit code, with the ranks that ended by it."""
    who: dict[str, list[int]] = {}
    for record in records:
        how = describe_death(record.exit_code, "") if record.exit_code else ""
        if record.error:
            error = record.error
            place = f"{short(error.line)}: " if error.line else ""
            first = textwrap.shorten(error.text, MOST_WORDS, placeholder=" ...")
            how = f"{place}{error.type}: {first}"
        if how:
            ranks = who.setdefault(how, [])
            ranks += [] if record.rank is None else [record.rank]
    return [
        f"{name_ranks(ranks) if ranks else 'the script'}: {how}"
        for how, ranks in who.items()
    ]


def explanations(records: list[Record]) -> list[str]:
    """Return who waited for whom, and what the clinic knows of the errors."""
    return [*waits(records), *diagnosis(records)]


def waits(records: list[Record]) -> Iterator[str]:
    """Yield a sentence for each call that ranks waited in until the watchdog bit.

    Whoever has begun the same collective of the same group waited, too. The others of
    the group did not come, and each stood somewhere else.
    """
    for job in jobs(records):
        yield from _waits_of_job({r.rank: r for r in job if r.rank is not None})


def _waits_of_job(ranks: dict[int, Record]) -> Iterator[str]:
    named = set()  # keys of collectives
    for rank, record in ranks.items():
        call = record.last_collective
        hung = call and record.error and TIMEOUT in record.error.text
        # A message has two ends that wait apart; a collective is told of once.
        if not hung or (call.peer is None and _key(call) in named):
            continue
        named.add(_key(call))
        if call.peer is not None:
            came, late, what = [rank], [call.peer], call.op
        else:
            came = [r for r in call.group if _begun(r, ranks) == _key(call)]
            late = [r for r in call.group if r not in came]
            what = f"{call.op}, call {call.number} of {name_ranks(call.group)}"
        lines = dict.fromkeys(short(ranks[r].last_collective.line) for r in came)
        where = " and ".join(filter(None, lines)) or "torch's own code"
        for_whom = name_ranks(late) if late else "its end"
        stood = "".join(f"; rank {r} {_stood(ranks.get(r))}" for r in late)
        yield f"{name_ranks(came)} waited at {where} in {what}, for {for_whom}{stood}"


def _key(call: BegunCollective) -> tuple[str, int, int | None]:
    """Return what a call has in common with those of other ranks that meet in it."""
    return call.name, call.number, call.peer


def _begun(rank: int, ranks: dict[int, Record]) -> tuple | None:
    """Return the key of the call that a rank has begun last; None if it has none."""
    call = ranks[rank].last_collective if rank in ranks else None
    return call and _key(call)


def _stood(record: Record | None) -> str:
    """Say where a rank was that others waited for."""
    if record is None:
        return "left no record"
    if record.error and TIMEOUT not in record.error.text:
        return f"had failed at {short(record.error.line)}"
    call = record.last_collective
    if record.error and call:
        return f"was in {call.op} of {name_ranks(call.group)} at {short(call.line)}"
    if record.standing_line and not record.ended:
        return f"stood at {short(record.standing_line)}"
    return "had ended"


def diagnosis(records: list[Record]) -> list[str]:
    """Return what the clinic knows of the errors: the case, its cause and its cure."""
    logs = [(f"rank {r.rank}", r.error.log) for r in records if r.error]
    suspects = diagnose(Log(*logs), folder(CASES)) if logs else []
    if not suspects:
        return []
    case = about_suspect(Log(*logs), suspects[0])
    parts = [f"{part.capitalize()}: {case[part]}" for part in ("cause", "cure")]
    return [case["title"], *parts, f"Read on: {case['read']}"]


def num_killed(counters: Path = VMSTAT) -> int:
    """Return how many processes Linux has ended for want of memory since it started.

    Args:
        counters: a file of names and numbers; one that is not there counts none.
    """
    text = counters.read_text("utf8") if counters.is_file() else ""
    return sum(
        int(n) for name, n in map(str.split, text.splitlines()) if name == "oom_kill"
    )


def killed_by_linux(num: int, records: list[Record]) -> str:
    """Return what to add to how a run failed while Linux ended processes.

    Linux counts those of the whole machine. If each of the run's has an error of its
    own or came to its end, it was none of them.

    Args:
        num: how many Linux has ended meanwhile.
        records: of the run's processes; who was killed early has left none.

    >>> killed_by_linux(1, [Record(ended=True)])
    ''
    """
    if records and all(record.ended or record.error for record in records):
        return ""
    what = f"this machine's memory was full, and Linux ended {num} of its processes"
    return f"; {what}: {HOST_MEMORY_CURE}"
