"""How long a collective may take: NCCL's ten minutes, or your seconds instead.

On GPUs a thread of c10d's, the watchdog, looks for collectives that take longer than
the group's timeout, and ends the process. Here the rank that waits is the one to find
out, after the group's timeout or after ``patience`` seconds, whichever is shorter.
"""

from datetime import timedelta

_patience: list[timedelta] = []  # the setting, if there is one


def set_patience(seconds: float | None) -> None:
    """Choose after how many seconds the watchdog bites, in place of the timeouts.

    Args:
        seconds: for every group and call that asks for more; None for no limit.

    Raises:
        ValueError: if it is not above 0.
    """
    if seconds is not None and not seconds > 0:
        raise ValueError(f"a watchdog after {seconds} s: give more than 0")
    _patience[:] = [] if seconds is None else [timedelta(seconds=seconds)]


def limit(timeout: timedelta) -> timedelta:
    """Return how long a rank really waits, where NCCL would wait for the timeout."""
    return min([timeout, *_patience])
