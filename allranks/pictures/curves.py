"""Curves: a few lines in a small plot, and the same numbers as text."""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10

from allranks.pictures.held import Picture
from allranks.pictures.svg import RANK_COLORS, document, figure, write

WIDTH, HEIGHT = 344, 248  # fits a phone without shrinking
LEFT, RIGHT, TOP, BOTTOM = 40, 18, 74, 40  # room around the plot
DASHES = ["none", "7 4", "2 3", "9 3 2 3"]  # not told apart by colour alone
NUM_SHOWN = 5  # points of each line in the text


def curves(
    title: str,
    x_label: str,
    y_label: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
) -> Picture:
    """Draw lines through points; both axes start at 0.

    Args:
        title: stands above the plot.
        x_label, y_label: what the axes show.
        lines: the points (x, y) of each line, by its name; at most 4 lines.
    Raises:
        ValueError: if there is no line, too many, or one without points.

    >>> curves("Squares", "n", "n²", {"n": [(0, 0), (2, 2)], "n²": [(0, 0), (2, 4)]})
    Squares (n², by n)
    n:  0 → 0, 2 → 2
    n²: 0 → 0, 2 → 4
    """
    if not 0 < len(lines) <= len(DASHES) or not all(lines.values()):
        raise ValueError(f"1 to {len(DASHES)} lines, each with points: {list(lines)}")
    points = [point for line in lines.values() for point in line]
    x_ticks = _ticks(max(x for x, _ in points))
    y_ticks = _ticks(max(y for _, y in points))
    x_scale = (WIDTH - LEFT - RIGHT) / x_ticks[-1]
    y_scale = (HEIGHT - TOP - BOTTOM) / y_ticks[-1]
    floor_y = HEIGHT - BOTTOM

    parts = []
    left = 0
    for name, dash, color in zip(lines, DASHES, RANK_COLORS, strict=False):
        style = f"fill:none;stroke:{color};stroke-width:2;stroke-dasharray:{dash}"
        parts.append(f'<path d="M{left} 33h26" style="{style}"/>')
        parts.append(write(left + 32, 38, name, "start", size=13))
        left += 50 + 8 * len(name)
        path = "L".join(
            f"{LEFT + x * x_scale:.0f} {floor_y - y * y_scale:.0f}"
            for x, y in lines[name]
        )
        parts.append(f'<path d="M{path}" style="{style}"/>')
    for tick in y_ticks:
        y = floor_y - tick * y_scale
        grid = "fill:none;stroke:currentColor;stroke-opacity:0.25"
        parts.append(f'<path d="M{LEFT} {y:.0f}H{WIDTH - RIGHT}" style="{grid}"/>')
        parts.append(write(LEFT - 6, round(y + 4), f"{tick:g}", "end", size=12))
    for tick in x_ticks:
        x = round(LEFT + tick * x_scale)
        parts.append(write(x, floor_y + 16, f"{tick:g}", size=12))
    parts.append(write(WIDTH - RIGHT, HEIGHT - 6, x_label, "end", size=13))
    parts.append(write(0, TOP - 14, y_label, "start", size=13))
    text = _text(f"{title} ({y_label}, by {x_label})", lines)
    return Picture(figure(title, document(WIDTH, HEIGHT, text, parts, top=22)), text)


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
        values = ", ".join(f"{points[i][0]:g} → {points[i][1]:.3g}" for i in shown)
        rows.append(f"{name}:".ljust(width) + f" {values}")
    return "\n".join(rows)
