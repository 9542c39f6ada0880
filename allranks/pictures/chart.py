"""What the pages' pictures are made of: rows of bars, dots, lines over axes.

Hue is the rank. What belongs to no rank is gray, and its depth tells kinds apart. Red
is waiting; what is wrong is black on yellow; what travels is hatched. Each kind is
named where it is drawn.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from allranks.base.picture import Picture
from allranks.base.svg import (
    ON_WRONG,
    RANK_COLORS,
    WRONG,
    either,
    figure,
    red,
)
from allranks.openings.sheet import LETTER, LINE, MUTED, NARROW, SIZE, WIDE, Sheet

DEPTHS = {"faint": 0.14, "plain": 0.34, "strong": 0.62}
BAR, ROW = 24, 34  # of a bar, and from row to row
FEW = 13  # px: of letters that only number something


def plate(title: str, alt: str, draw: Callable[[int], Sheet]) -> Picture:
    """Draw a picture for a column and for a phone.

    Args:
        title: the claim, as HTML above the drawing.
        alt: what the drawing shows, with its numbers.
        draw: takes a width, ``WIDE`` or ``NARROW``.
    """
    wide, narrow = (draw(width).svg(alt) for width in (WIDE, NARROW))
    return Picture(figure(title, either(wide, narrow)), f"{title}\n{alt}")


def read(output: str, pattern: str, least: int = 1) -> list[re.Match]:
    """Find the lines of an output that a picture is drawn from.

    Raises:
        ValueError: if there are fewer than ``least``.
    """
    found = list(re.finditer(pattern, output, re.MULTILINE))
    if len(found) < least:
        raise ValueError(
            f"the output has {len(found)} lines of the form {pattern}, and the picture "
            f"needs {least}: adapt the picture to the new output"
        )
    return found


def claim(holds: bool, title: str) -> str:
    """Return a title that the numbers support.

    Raises:
        ValueError: if they do not.
    """
    if not holds:
        raise ValueError(f"the numbers contradict the title: {title}")
    return title


def percent(share: float) -> str:
    """Write a share of 1 in percent.

    >>> percent(0.5)
    '50 %'
    """
    return f"{100 * share:.0f} %"


def wide(sheet: Sheet) -> bool:
    """Tell whether a sheet is for a column, and not for a phone."""
    return sheet.width > NARROW


def fill(
    sheet: Sheet,
    x: float,
    y: float,
    width: float,
    height: float,
    kind: str,
    rank: int | None = None,
) -> None:
    """Draw a box of a kind: faint, plain, strong, waits, wrong, travels or empty."""
    # Even a tiny share is drawn.
    width = max(width, 0.5)
    place = f'x="{x:.4g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}"'
    color = MUTED if rank is None else RANK_COLORS[rank % len(RANK_COLORS)]
    if kind == "waits":
        sheet.parts.append(red(round(x, 1), y, round(width, 1), height))
        return
    if kind == "wrong":
        style = f"fill:{WRONG};stroke:{ON_WRONG}"
    elif kind == "empty":
        style = f"fill:none;stroke:{color};stroke-dasharray:4 3"
    elif kind == "travels":
        style = f"fill:{color};fill-opacity:0.1;stroke:{color}"
    else:
        style = f"fill:{color};fill-opacity:{DEPTHS[kind]};stroke:{color}"
    sheet.parts.append(f'<rect {place} style="{style}"/>')
    if kind == "travels":
        hatch(sheet, x, y, width, height, color)


def hatch(
    sheet: Sheet, x: float, y: float, width: float, height: float, color: str
) -> None:
    """Draw slanted lines into a box; a pattern of SVG would need a unique name."""
    path, step = "", 7.0
    shift = step / 2
    while shift < width + height:
        # A line from the left or lower edge to the upper or right one.
        x0, y0 = max(0.0, shift - height), min(shift, height)
        x1, y1 = min(shift, width), max(0.0, shift - width)
        path += f"M{x + x0:.4g} {y + y0:.4g}L{x + x1:.4g} {y + y1:.4g}"
        shift += step
    style = f"fill:none;stroke:{color};stroke-width:1.5"
    sheet.parts.append(f'<path d="{path}" style="{style}"/>')


def rule(
    sheet: Sheet,
    path: str,
    dash: str = "none",
    color: str = MUTED,
    thick: float = 1.5,
) -> None:
    """Draw a line along an SVG path."""
    style = f"fill:none;stroke:{color};stroke-width:{thick:g};stroke-dasharray:{dash}"
    sheet.parts.append(f'<path d="{path}" style="{style}"/>')


def dot(sheet: Sheet, x: float, y: float, color: str = "currentColor") -> None:
    """Draw a point."""
    sheet.parts.append(
        f'<circle cx="{x:.4g}" cy="{y:.4g}" r="4.5" style="fill:{color}"/>'
    )


def long(text: str, size: int = SIZE) -> float:
    """Return how wide a text may be, in units of the drawing."""
    return LETTER * size * len(text)


class Row(NamedTuple):
    """A row of a bar chart: its name, parts (value, kind), and what is said of it."""

    name: str
    parts: Sequence[tuple[float, str]]
    said: str
    rank: int | None = None


def stick(sheet: Sheet, left: float, x: float, y: float, said: str) -> None:
    """Draw a number as a dot at the end of a line: its axis need not begin at 0."""
    rule(sheet, f"M{left:.4g} {y + 12}H{x:.4g}", thick=2)
    dot(sheet, x, y + 12)
    sheet.words(x + 10, y + 17, said, bold=True)


def in_two(
    names: Sequence[str],
    heads: tuple[str, str],
    margin: int,
    row: Callable[[Sheet, str, float, float, float], None],
) -> Callable[[int], Sheet]:
    """Return how to draw two numbers of each name, beside each other.

    Args:
        heads: what the two numbers are.
        margin: px for the names; on a phone, they stand above.
        row: draws a name's numbers, given the sheet, the name, y, where the first
            number begins, and how wide each may be.
    """

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        # A row is 34 high; a name above it takes 20 more.
        left, pitch = (margin, 34) if inside else (0, 54)
        half = (width - left) / 2
        sheet = Sheet(width, 32 + pitch * len(names))
        for x, head in zip((left, left + half), heads, strict=True):
            sheet.words(x, 16, head, bold=True)
        for place, name in enumerate(names):
            y = 28 + pitch * place + (0 if inside else 20)
            if inside:
                sheet.words(left - 12, y + 17, name, "end")
            else:
                sheet.words(0, y - 4, name)
            row(sheet, name, y, left, half)
        return sheet

    return draw


def bars(
    width: int,
    rows: Sequence[Row],
    most: float,
    names: float = 200,
    said: float = 120,
    legend: Sequence[tuple[str, str]] = (),
    mark: tuple[float, str] | None = None,
) -> Sheet:
    """Draw rows of bars that begin at one line.

    Args:
        most: the value at the right end of the scale.
        names, said: room in a column for the names and for what is said of the bars; on
            a phone the names stand above their bars.
        legend: what the kinds mean, as (kind, text), above the first row.
        mark: a value, and its name, at which an upright line stands.
    """
    inside = width > NARROW
    pitch = ROW if inside else ROW + LINE
    # On a phone the names stand above their bars.
    left = names if inside else 0
    scale = (width - left - said) / most
    top = (26 if legend else 0) + (24 if mark else 0)
    sheet = Sheet(width, top + pitch * len(rows))
    if mark:
        value, name = mark
        x = left + value * scale
        rule(sheet, f"M{x:.4g} {top - 4}V{sheet.height:.4g}", "5 4", "currentColor")
        side = "middle" if x > long(name) / 2 else "start"
        sheet.words(x if side == "middle" else 0, top - 10, name, side)
    key(sheet, left if inside and not narrow_key(legend, width - left) else 0, legend)
    for number, row in enumerate(rows):
        y = top + pitch * number + (0 if inside else LINE)
        if inside:
            sheet.words(left - 12, y + 17, row.name, "end")
        else:
            if mark:  # the line would cross the name
                sheet.blank(0, y - 18, long(row.name), 17)
            sheet.words(2, y - 5, row.name)
        x = left
        for value, kind in row.parts:
            if value > 0:
                fill(sheet, x, y, value * scale, BAR, kind, row.rank)
            x += value * scale
        if mark:  # the line would cross what is said
            sheet.blank(x + 4, y + 1, long(row.said) + 8, BAR - 2)
        sheet.words(x + 8, y + 17, row.said, bold=True)
    return sheet


def narrow_key(legend: Sequence[tuple[str, str]], room: float) -> bool:
    """Tell whether a legend needs more room than there is."""
    return sum(34 + long(text) for _, text in legend) > room


def key(
    sheet: Sheet, x: float, legend: Sequence[tuple[str, str]], y: float = 0
) -> None:
    """Say what kinds of boxes mean, in a line."""
    for kind, text in legend:
        fill(sheet, x, y + 1, 20, 14, kind)
        sheet.words(x + 26, y + 13, text)
        x += 34 + long(text)


class Axis(NamedTuple):
    """An axis: its ticks as (value, text), and where a value is, from 0 to 1."""

    ticks: Sequence[tuple[float, str]]
    share: Callable[[float], float]
    name: str


class Plot:
    """A field with two axes on a sheet."""

    def __init__(
        self,
        sheet: Sheet,
        x_axis: Axis,
        y_axis: Axis,
        height: float = 220,
        right: float = 130,
        left: float = 46,
        top: float = 26,
        x: float = 0,
        width: float | None = None,
    ) -> None:
        """Draw axes and grid; ``right`` is the room for names at the lines' ends."""
        self.sheet, self.x_axis, self.y_axis = sheet, x_axis, y_axis
        self.left, self.top = x + left, top
        self.right = x + (sheet.width if width is None else width) - right
        self.bottom = top + height
        sheet.words(x, top - 12, y_axis.name, size=FEW)
        # Lines across are enough to read values off.
        for value, text in y_axis.ticks:
            y = self.at(0, value, 0)[1]
            rule(sheet, f"M{self.left:.4g} {y:.4g}H{self.right:.4g}", thick=0.5)
            sheet.words(self.left - 6, y + 4, text, "end", size=FEW)
        for value, text in x_axis.ticks:
            px = self.left + x_axis.share(value) * (self.right - self.left)
            sheet.words(px, self.bottom + 17, text, "middle", size=FEW)
        sheet.words(self.right, self.bottom + 36, x_axis.name, "end", size=FEW)

    def at(self, x: float, y: float, share: float | None = None) -> tuple[float, float]:
        """Return where a point is on the sheet."""
        share = self.x_axis.share(x) if share is None else share
        return (
            self.left + share * (self.right - self.left),
            self.bottom - self.y_axis.share(y) * (self.bottom - self.top),
        )

    def line(
        self,
        points: Sequence[tuple[float, float]],
        name: str = "",
        dash: str = "none",
        thick: float = 2,
        color: str = "currentColor",
        dots: bool = True,
        drop: float = 0,
        bold: bool = False,
    ) -> None:
        """Draw a line through points, with its name at its end."""
        places = [self.at(*point) for point in points]
        path = "M" + "L".join(f"{x:.4g} {y:.4g}" for x, y in places)
        rule(self.sheet, path, dash, color, thick)
        for place in places if dots else ():
            dot(self.sheet, *place, color)
        x, y = places[-1]
        if name:
            self.sheet.words(x + 10, y + 5 + drop, name, bold=bold)


def linear(ticks: Sequence[float], name: str, say: str = "g", low: float = 0) -> Axis:
    """Return an axis from ``low`` to its last tick."""
    span = ticks[-1] - low
    return Axis(
        [(tick, format(tick, say)) for tick in ticks],
        lambda value: (value - low) / span,
        name,
    )
