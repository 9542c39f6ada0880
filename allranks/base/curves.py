"""Curves: a few lines in a small plot, and the same numbers as text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, pairwise, product
from math import ceil, floor, log10
from typing import Literal, NamedTuple

from allranks.base.picture import Picture
from allranks.base.svg import RANK_COLORS, document, either, figure, write

Point = tuple[float, float]
WIDTH = 344  # fits a phone without shrinking
WIDE = 728  # fills a column
ENDS = 176  # of it, for names at the lines' ends
GRID = "fill:none;stroke:currentColor;stroke-opacity:0.25"
HEIGHTS = {
    False: 134,
    "y": 204,
    True: 260,
}  # of the plot; logarithmic ones have more to show
LEFT, RIGHT, TOP, BOTTOM = 40, 18, 54, 40  # room around it, below the names
ROW = 20  # of names
NEAR = 44  # to the right edge: such a line has its name beside the plot
DASHES = ["none", "7 4", "2 3", "9 3 2 3", "12 4", "1 5"]  # not by color alone
NUM_SHOWN = 5  # points of each line in the text
RAISED = str.maketrans({"-": "⁻", **dict(zip("23456789", "²³⁴⁵⁶⁷⁸⁹", strict=True))})


def curves(
    title: str,
    x_label: str,
    y_label: str,
    lines: Mapping[str, Sequence[Point]],
    log: bool | Literal["y"] = False,
    dots: Mapping[str, Point] | None = None,
) -> Picture:
    """Draw lines through points.

    Args:
        title: stands above the plot.
        x_label, y_label: what the axes show.
        lines: the points (x, y) of each line, by its name; at most 6 lines.
        log: whether both axes are logarithmic, or "y" for that one alone; an axis that
            is not starts at 0.
        dots: a point on a line that is marked, by the line's name.
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
    xs, ys = zip(*(point for line in lines.values() for point in line), strict=True)
    # The logarithm of 0 would end the drawing with an error that names no number.
    for axis_log, values in (log is True, xs), (log, ys):
        if axis_log and min(values) <= 0:
            raise ValueError(f"{log=} needs numbers above 0, not {min(values)}")

    text = _text(f"{title} ({y_label}, by {x_label})", lines)
    plot = _Plot(x_label, y_label, lines, dots or {}, log, text)
    drawing = plot.draw(WIDTH)
    if log:  # what has more to show gets the column
        drawing = either(plot.draw(WIDE), drawing)
    return Picture(figure(title, drawing), text)


class _Plot(NamedTuple):
    """What is drawn, at any width."""

    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[Point]]
    dots: Mapping[str, Point]
    log: bool | Literal["y"]
    text: str

    def draw(self, width: int) -> str:
        """Draw it with the names above it, or at the lines' ends if there is room."""
        wide, both, high = width == WIDE, self.log is True, HEIGHTS[self.log]
        points = [point for line in self.lines.values() for point in line]
        x_ticks, x_share = (_decades if both else _from_zero)([x for x, _ in points])
        y_ticks, y_share = (_decades if self.log else _from_zero)(
            [y for _, y in points]
        )
        at_ends = wide and not _collide(
            (LEFT + x_share(x) * (width - ENDS - LEFT), high * y_share(y), name)
            for name, (*_, (x, y)) in self.lines.items()
        )
        names, top = ([], 60) if at_ends else _names(self.lines, width)
        floor_y, right = top + high, width - (ENDS if at_ends else RIGHT)

        def place(x: float, y: float) -> tuple[float, float]:
            return LEFT + x_share(x) * (right - LEFT), floor_y - y_share(y) * high

        parts, ends = list(names), []
        for (name, line), color, dash in zip(
            self.lines.items(), RANK_COLORS, DASHES, strict=False
        ):
            path = "L".join(f"{x:.0f} {y:.0f}" for x, y in (place(*at) for at in line))
            style, shown = _style(color, dash), f"<title>{name}</title>"
            parts.append(f'<path d="M{path}" style="{style}">{shown}</path>')
            if name in self.dots:
                x, y = place(*self.dots[name])
                look = f'r="5" style="fill:{color}"'
                parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" {look}/>')
            ends.append((*place(*line[-1]), name, color))
        for tick in y_ticks:
            y = place(points[0][0], tick)[1]
            parts.append(f'<path d="M{LEFT} {y:.0f}H{right}" style="{GRID}"/>')
            parts.append(write(LEFT - 6, round(y + 4), _short(tick), "end", size=12))
        for number, tick in enumerate(x_ticks):
            x = place(tick, points[0][1])[0]
            text, below = _short(tick), floor_y + 16 + 4 * both
            if both:
                parts.append(f'<path d="M{x:.0f} {top}V{floor_y}" style="{GRID}"/>')
                text = "1k" if text == "1000" else text  # as beside it 10k
            if wide or not both or number % 2 == 0:  # a phone has no room for all
                parts.append(write(round(x), below, text, size=12))
        parts += _at_the_ends(ends, right) if at_ends else []
        parts.append(
            write(right, floor_y + 34 + 4 * both, self.x_label, "end", size=13)
        )
        parts.append(write(0, top - 14, self.y_label, "start", size=13))
        return document(width, floor_y + BOTTOM + 4 * both, self.text, parts, top=22)


def _collide(ends: Iterable[tuple[float, float, str]]) -> bool:
    """Tell whether two names beside their lines' ends would lie on each other."""
    inside = [end for end in ends if end[0] < WIDE - ENDS - NEAR]
    return any(
        abs(a[1] - b[1]) < ROW and a[0] - b[0] < 8 * len(b[2]) + 8
        for b, a in combinations(sorted(inside), 2)  # b begins before a
    )


def _at_the_ends(ends: list[tuple], right: float) -> list[str]:
    """Write the lines' names beside their ends; at the right edge, one by one."""
    inside = [end for end in ends if end[0] < right - NEAR]
    crowd = sorted((end for end in ends if end not in inside), key=lambda end: end[1])
    at = [y for _, y, *_ in crowd]
    for _, (i, j) in product(range(50), list(pairwise(range(len(at))))):
        if (lacking := ROW - (at[j] - at[i])) > 0:
            at[i], at[j] = at[i] - lacking / 2, at[j] + lacking / 2
    parts = []
    for (x, y, name, color), to in zip(crowd, at, strict=True):
        thin = f"fill:none;stroke:{color};stroke-width:1"
        parts.append(
            f'<path d="M{x:.0f} {y:.0f}L{right + 10} {to:.0f}" style="{thin}"/>'
        )
        parts.append(write(right + 13, round(to + 4), name, "start", size=13))
    for x, y, name, _ in inside:
        parts.append(write(round(x + 8), round(y + 4), name, "start", size=13))
    return parts


def _style(color: str, dash: str) -> str:
    """Return how a line is drawn."""
    return f"fill:none;stroke:{color};stroke-width:2;stroke-dasharray:{dash}"


def _names(lines: Mapping[str, Sequence], within: int) -> tuple[list[str], int]:
    """Write the lines' names in rows; return them, and where the plot begins."""
    parts, left, y = [], 0, 33
    for name, color, dash in zip(lines, RANK_COLORS, DASHES, strict=False):
        width = 42 + 8 * len(name)
        if left and left + width > within:
            left, y = 0, y + ROW
        parts.append(f'<path d="M{left} {y}h26" style="{_style(color, dash)}"/>')
        parts.append(write(left + 32, y + 5, name, "start", size=13))
        left += width + 8
    return parts, y - 13 + TOP


Axis = tuple[list[float], Callable[[float], float]]


def _from_zero(values: list[float]) -> Axis:
    """Return the ticks of an axis from 0, and where a value is on it, from 0 to 1."""
    ticks = _ticks(max(values))
    return ticks, lambda value: value / ticks[-1]


def _decades(values: list[float]) -> Axis:
    """Return the powers of ten around the values, and where a value is, from 0 to 1."""
    first, last = floor(log10(min(values))), ceil(log10(max(values)))
    last = max(last, first + 1)
    ticks = [10.0**power for power in range(first, last + 1)]
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
