"""Numbers as people write and read them: whole ones, and amounts with a unit."""

import math
import operator

UNITS = {
    "B": ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")),
    "s": ((1e-6, "µs"), (1e-3, "ms"), (1, "s"), (3600, "h"), (86400, "d")),
}


def whole(name: str, value: int, low: int) -> int:
    """Return a value as an int, or raise unless it is a whole number of at least low.

    Raises:
        TypeError: if it is no whole number; a bool counts as none.
        ValueError: if it is below low.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        hint = ": convert it with int() first" if isinstance(value, str) else ""
        raise TypeError(f"{name} must be a whole number, not {value!r}{hint}")
    if operator.index(value) < low:
        raise ValueError(f"{name} must be at least {low}, not {value}")
    return operator.index(value)


def amount(value: float, unit: str) -> str:
    """Write an amount with three digits and a decimal prefix; a half is rounded up.

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
