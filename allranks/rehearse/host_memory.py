"""The memory of this machine, in which virtual GPUs keep what they hold.

A GPU's memory may be larger than the laptop's. Then the laptop's ends first: torch says
so with an error, or Linux ends a process without a word.
"""

from pathlib import Path

from allranks.rehearse.records import Record

FULL = "DefaultCPUAllocator: can't allocate memory"  # torch's words
COUNTERS = Path("/proc/vmstat")  # has a line "oom_kill N" since Linux 4.13
CURE = (
    "virtual GPUs keep what they hold in it, so rehearse with fewer ranks, or with a "
    "smaller model or batch"
)


def advice(error: BaseException) -> str:
    """Say in a sentence that it was this machine's memory that ended, or return "".

    >>> advice(ValueError("no"))
    ''
    """
    if FULL in str(error) or isinstance(error, MemoryError):
        return f"this machine's memory is full, not a GPU's: {CURE}"
    return ""


def num_killed(counters: Path = COUNTERS) -> int:
    """Return how many processes Linux has ended for want of memory since it started.

    Args:
        counters: a file of names and numbers; one that is not there counts none.
    """
    text = counters.read_text("utf8") if counters.is_file() else ""
    return sum(
        int(n) for name, n in map(str.split, text.splitlines()) if name == "oom_kill"
    )


def explain(num: int, records: list[Record]) -> str:
    """Return what to add to how a run failed while Linux ended processes.

    Linux counts those of the whole machine. If each of the run's has an error of its
    own or came to its end, it was none of them.

    Args:
        num: how many Linux has ended meanwhile.
        records: of the run's processes; who was killed early has left none.

    >>> explain(1, [Record(ended=True)])
    ''
    """
    if records and all(record.ended or record.error for record in records):
        return ""
    what = f"this machine's memory was full, and Linux ended {num} of its processes"
    return f"; {what}: {CURE}"
