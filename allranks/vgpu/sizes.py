"""Sizes in bytes, read and written as torch's messages do."""

import re

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def to_bytes(size: str | int) -> int:
    """Return a size in bytes: an integer is one already, a string has a unit.

    Raises:
        ValueError: if it is not a positive size.

    >>> to_bytes("1.5 GiB"), to_bytes("12GB"), to_bytes(512)
    (1610612736, 12000000000, 512)
    """
    match = re.fullmatch(r"([\d.]+) *([KMGT]i?B|B)", str(size).strip())
    try:
        num_bytes = int(float(match[1]) * UNITS[match[2]] if match else int(size))
    except ValueError:
        num_bytes = 0
    if num_bytes < 1:
        raise ValueError(f'memory {size!r}: give bytes, or a size such as "1 GiB"')
    return num_bytes


def from_bytes(num_bytes: int) -> str:
    """Write a size as torch's messages do.

    >>> from_bytes(1610612736), from_bytes(512)
    ('1.50 GiB', '512 bytes')
    """
    for unit in ("GiB", "MiB", "KiB"):
        if num_bytes >= UNITS[unit]:
            return f"{num_bytes / UNITS[unit]:.2f} {unit}"
    return f"{num_bytes} bytes"
