"""Curves: a few lines in a small plot, and the same numbers as text."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log10

from allranks.pictures.held import Picture
from allranks.pictures.svg import RANK_COLORS, document, figure, write

WIDTH = 344  # fits a phone without shrinking
HEIGHTS = {False: 134, True: 204}  # of the plot; logarithmic ones have more to show
LEFT, RIGHT, TOP, BOTTOM = 40, 18, 54, 40  # room around it, below the names
ROW = 20  # of names
DASHES = ["none", "7 4", "2 3", "9 3 2 3", "12 4", "1 5"]  # not by colour alone
NUM_SHOWN = 5  # points of each line in the text
RAISED = str.maketrans({"-": "⁻", **dict(zip("23456789", "²³⁴⁵⁶⁷⁸⁹", strict=True))})


def curves(
    title: str,
    x_label: str,
    y_label: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    log: bool = False,
) -> Picture:
    """Draw lines through points.

    Args:
        title: stands above the plot.
        x_label, y_label: what the axes show.
        lines: the points (x, y) of each line, by its name; at most 6 lines.
        log: whether both axes are logarithmic; otherwise they start at 0.
    Raises:
        ValueError: if there is no line, too many, or one without points, or if an axis
            is to be logarithmic and a number is not above 0.

    >>> curves("Squares", "n", "n²", {"n": [(0, 0), (2, 2)], "n²": [(0, 0), (2, 4)]})
    Squares (n², by n)
    n:  0 → 0, 2 → 2
    n²: 0 → 0, 2 → 4
    """
    if not 0 < len(lines) <= len(DASHES) or not all(lines.values()):
        raise ValueError(f"1 to {len(DASHES)} lines, each with points: {list(lines)}")
    points = [point for line in lines.values() for point in line]
    if log and min(map(min, points)) <= 0:
        raise ValueError(f"log=True needs numbers above 0, not {min(map(min, points))}")

    names, top = _names(lines)
    floor_y = top + HEIGHTS[log]
    axis = _decades if log else _from_zero
    x_ticks, x_share = axis([x for x, _ in points], most=4)
    y_ticks, y_share = axis([y for _, y in points], most=6)

    def across(x: float) -> float:
        return LEFT + x_share(x) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return floor_y - y_share(y) * HEIGHTS[log]

    parts = list(names)
    for (name, line), style in zip(lines.items(), _styles(), strict=False):
        path = "L".join(f"{across(x):.0f} {up(y):.0f}" for x, y in line)
        parts.append(f'<path d="M{path}" style="{style}"><title>{name}</title></path>')
    for tick in y_ticks:
        grid = "fill:none;stroke:currentColor;stroke-opacity:0.25"
        y = up(tick)
        parts.append(f'<path d="M{LEFT} {y:.0f}H{WIDTH - RIGHT}" style="{grid}"/>')
        parts.append(write(LEFT - 6, round(y + 4), _short(tick), "end", size=12))
    for tick in x_ticks:
        parts.append(write(round(across(tick)), floor_y + 16, _short(tick), size=12))
    parts.append(write(WIDTH - RIGHT, floor_y + 34, x_label, "end", size=13))
    parts.append(write(0, top - 14, y_label, "start", size=13))
    text = _text(f"{title} ({y_label}, by {x_label})", lines)
    drawing = document(WIDTH, floor_y + BOTTOM, text, parts, top=22)
    return Picture(figure(title, drawing), text)


def _styles() -> list[str]:
    """Return how each line is drawn."""
    return [
        f"fill:none;stroke:{color};stroke-width:2;stroke-dasharray:{dash}"
        for color, dash in zip(RANK_COLORS, DASHES, strict=False)
    ]


def _names(lines: Mapping[str, Sequence]) -> tuple[list[str], int]:
    """Write the lines' names in rows; return them, and where the plot begins."""
    parts, left, y = [], 0, 33
    for name, style in zip(lines, _styles(), strict=False):
        width = 42 + 8 * len(name)
        if left and left + width > WIDTH:
            left, y = 0, y + ROW
        parts.append(f'<path d="M{left} {y}h26" style="{style}"/>')
        parts.append(write(left + 32, y + 5, name, "start", size=13))
        left += width + 8
    return parts, y - 13 + TOP


Axis = tuple[list[float], Callable[[float], float]]


def _from_zero(values: list[float], most: int) -> Axis:
    """Return the ticks of an axis from 0, and where a value is on it, from 0 to 1."""
    ticks = _ticks(max(values))
    return ticks, lambda value: value / ticks[-1]


def _decades(values: list[float], most: int) -> Axis:
    """Return at most so many powers of ten, and where a value is, from 0 to 1."""
    first, last = floor(log10(min(values))), ceil(log10(max(values)))
    last = max(last, first + 1)
    step = -(-(last - first) // most)
    ticks = [10.0**power for power in range(first, last + 1, step)]
    return ticks, lambda value: (log10(value) - first) / (last - first)


def _short(number: float) -> str:
    """Write a number in few characters.

    >>> _short(0.5), _short(2500), _short(10_000), _short(2**23), _short(0.0001)
    ('0.5', '2500', '10k', '8.39M', '10⁻⁴')
    """
    for size, letter in (1e9, "G"), (1e6, "M"), (1e3, "k"):
        if number >= 10_000 and number >= size:
            return f"{number / size:.3g}{letter}"
    power = log10(number) if number > 0 else 0
    if power < -3 and power == round(power):  # a tick that would be too wide
        return f"10{round(power)}".translate(RAISED)
    return f"{number:g}"


def _ticks(largest: float) -> list[float]:
    """Return round numbers from 0 to the first that is not below the largest.

    >>> _ticks(320), _ticks(2.3), _ticks(60)
    ([0, 100, 200, 300, 400], [0.0, 0.5, 1.0, 1.5, 2.0, 2.5], [0, 20, 40, 60])
    """
    largest = largest or 1
    unit = 10 ** floor(log10(largest))
    step = next(unit * f for f in (0.2, 0.5, 1, 2) if largest / (unit * f) <= 5)
    step = int(step) if step >= 1 else step
    return [round(step * n, 9) for n in range(ceil(largest / step - 1e-9) + 1)]


def _text(head: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Write a few points of each line below the heading."""
    width = max(map(len, lines)) + 1
    rows = [head]
    for name, points in lines.items():
        last = len(points) - 1
        shown = sorted({round(last * i / (NUM_SHOWN - 1)) for i in range(NUM_SHOWN)})
        values = ", ".join(
            f"{_short(points[i][0])} → {points[i][1]:.3g}" for i in shown
        )
        rows.append(f"{name}:".ljust(width) + f" {values}")
    return "\n".join(rows)
