"""Amounts as people read them: three digits and a unit with a decimal prefix."""

import math

UNITS = {
    "B": ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")),
    "s": ((1e-6, "µs"), (1e-3, "ms"), (1, "s"), (3600, "h"), (86400, "d")),
}


def amount(value: float, unit: str) -> str:
    """Write an amount with three digits; a half is rounded up.

    The kit of the explorables has the same function, so that pages show the same texts.

    Args:
        value: in the unit itself.
        unit: "B" for bytes, "s" for seconds.

    >>> amount(1_500_000, "B"), amount(0.000_012_345, "s"), amount(182e6, "s")
    ('1.5 MB', '12.3 µs', '2106 d')
    """
    steps = UNITS[unit]
    scale, name = next((s for s in reversed(steps) if value >= s[0]), steps[0])
    number = value / scale
    places = 1 if number >= 100 else 10 if number >= 10 else 100
    return f"{math.floor(number * places + 0.5) / places:.10g} {name}"
