"""A sheet to draw an opening picture on: boxes, words, arrows, in page colors."""

from collections.abc import Sequence
from html import escape
from textwrap import wrap
from typing import Any

from allranks.base.svg import ON_WRONG, RANK_COLORS, WRONG, red

NARROW, GAP = 352, 48  # a half of a picture, and what is between two of them
WIDE = 2 * NARROW + GAP
SIZE, LINE = 14, 19  # of letters, and from line to line; nothing is smaller
LETTER = 0.64  # of its size: the mean width of a letter, in a wide font
MUTED = "var(--pst-color-text-muted, #667085)"
GROUND = "var(--pst-color-background, #fff)"


def columns(width: float) -> int:
    """Return how many letters fit into a width.

    >>> columns(352)
    39
    """
    return int(width / (SIZE * LETTER))


class Sheet:
    """Parts of a drawing in the order in which they lie on each other."""

    def __init__(self, width: int, height: float) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = []

    def words(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str = "start",
        bold: bool = False,
        color: str = "currentColor",
        size: int = SIZE,
    ) -> None:
        """Write one line; ``y`` is that of its base line."""
        weight = ' font-weight="650"' if bold else ""
        place = f'x="{x:.4g}" y="{y:.4g}" font-size="{size}" text-anchor="{anchor}"'
        text = escape(text)
        self.parts.append(f'<text {place}{weight} style="fill:{color}">{text}</text>')

    def wrong(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        """Write what is wrong, or does not fit: black on yellow."""
        wide = SIZE * LETTER * len(text) + 8
        left = x - wide * {"start": 0, "middle": 0.5, "end": 1}[anchor]
        place = f'x="{left:.4g}" y="{y - 16}" width="{wide:.4g}" height="22" rx="3"'
        self.parts.append(f'<rect {place} style="fill:{WRONG}"/>')
        self.words(left + wide / 2, y, text, "middle", bold=True, color=ON_WRONG)

    def waits(self, x: float, y: float, width: float, height: float, name: str) -> None:
        """Draw a time in which a rank waits."""
        self.parts.append(red(x, y, width, height))
        self.words(x + width / 2, y + height / 2 + 5, name, "middle")

    def lines(self, x: float, y: float, text: str, width: float, **how: Any) -> float:
        """Write text into lines of a width; return the base line of the next one."""
        for line in wrap(text, columns(width)):
            self.words(x, y, line, **how)
            y += LINE
        return y

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *texts: str,
        rank: int | None = None,
        strong: float = 0.16,
        dashed: bool = False,
        bold: bool = True,
    ) -> None:
        """Draw a box in a rank's color, or gray, with lines of text in its middle."""
        color = MUTED if rank is None else RANK_COLORS[rank]
        place = f'x="{x:.4g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}"'
        style = f"fill:{color};fill-opacity:{strong:.4g};stroke:{color}"
        style += ";stroke-width:1.5"
        style += ";stroke-dasharray:5 4" if dashed else ""
        self.parts.append(f'<rect {place} rx="5" style="{style}"/>')
        # The first base line: the block of lines is centered, and 5 is half a letter's
        # height.
        top = y + height / 2 - (len(texts) - 1) * LINE / 2 + 5
        for i, text in enumerate(texts):
            first = bold and not i
            self.words(x + width / 2, top + i * LINE, text, "middle", bold=first)

    def hatched(self, x: float, y: float, width: float, height: float) -> None:
        """Draw a box of what travels, of no rank in particular."""
        self.box(x, y, width, height, strong=0)
        path, pen = "", (0.0, 0.0)  # relative, since a thumbnail is cropped to M and L
        for at in range(8, int(width + height), 8):  # x where a line meets the top
            over, under = max(0, at - width), max(0, at - height)
            start, end = (x + at - over, y + over), (x + under, y + at - under)
            for letter, point in ("m", start), ("l", end):
                path += f"{letter}{point[0] - pen[0]:.4g} {point[1] - pen[1]:.4g}"
                pen = point
        style = f"stroke:{MUTED};stroke-width:2.5"
        self.parts.append(f'<path d="{path}" style="{style}"/>')

    def frame(
        self, x: float, y: float, width: float, height: float, **how: Any
    ) -> None:
        """Draw an empty box, such as what encloses others."""
        self.box(x, y, width, height, strong=0, **how)

    def bars(self, x: float, y: float, heights: Sequence[float], rank: int) -> None:
        """Draw numbers as bars on a line, those below zero downwards."""
        path = "".join(
            f"M{x + 12 + i * 22:.4g} {y:.4g}v{-height:.4g}h16v{height:.4g}z"
            for i, height in enumerate(heights)
        )
        self.parts.append(f'<path d="{path}" style="fill:{RANK_COLORS[rank]}"/>')
        line = f"M{x:.4g} {y:.4g}h{22 * len(heights) + 18}"
        self.parts.append(f'<path d="{line}" style="stroke:currentColor"/>')

    def blank(self, x: float, y: float, width: float, height: float) -> None:
        """Cover what is below with the page's ground, so that a text can be read."""
        width = min(width, self.width - x)  # nothing leaves the sheet
        place = f'x="{x:.4g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}"'
        self.parts.append(f'<rect {place} style="fill:{GROUND}"/>')

    def arrow(
        self, path: str, both: bool = False, color: str = MUTED, thick: float = 2
    ) -> None:
        """Draw a path of lines, ``x,y x,y …``, with a head at its end or at both."""
        points = [tuple(map(float, pair.split(","))) for pair in path.split()]
        line = "M" + "L".join(f"{x:.4g} {y:.4g}" for x, y in points)
        line += head(points[-2], points[-1])
        line += head(points[1], points[0]) if both else ""
        style = f"fill:none;stroke:{color};stroke-width:{thick:.4g}"
        self.parts.append(f'<path d="{line}" style="{style}"/>')

    def badge(self, x: float, y: float, text: str) -> None:
        """Draw a number in a disc, which the list beside the drawing explains."""
        style = f"fill:{GROUND};stroke:currentColor;stroke-width:1.5"
        self.parts.append(f'<circle cx="{x:.4g}" cy="{y:.4g}" r="12" style="{style}"/>')
        self.words(x, y + 5, text, "middle", bold=True)

    def put(self, other: "Sheet", x: float, y: float) -> None:
        """Lay another sheet on this one, and grow downwards if it needs that."""
        parts = "".join(other.parts)
        self.parts.append(f'<g transform="translate({x:.4g} {y:.4g})">{parts}</g>')
        self.height = max(self.height, y + other.height)

    def svg(self, label: str) -> str:
        """Return the drawing; ``label`` is what a screen reader reads."""
        width, height = self.width + 2, self.height + 2  # strokes reach over an edge
        size = f'viewBox="-1 -1 {width:.4g} {height:.4g}" width="{width:.4g}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
            'font-family="system-ui, sans-serif" style="width:100%;height:auto" '
            f'aria-label="{escape(label)}">{"".join(self.parts)}</svg>'
        )


def head(before: tuple[float, float], tip: tuple[float, float]) -> str:
    """Return the two strokes of an arrow's head."""
    dx, dy = tip[0] - before[0], tip[1] - before[1]
    length = (dx * dx + dy * dy) ** 0.5
    dx, dy = 7 * dx / length, 7 * dy / length
    ends = [(-dx - dy * 0.7, -dy + dx * 0.7), (-dx + dy * 0.7, -dy - dx * 0.7)]
    return "".join(
        f"M{tip[0] + x:.1f} {tip[1] + y:.1f}L{tip[0]:.4g} {tip[1]:.4g}" for x, y in ends
    )


def halves(width: int, left: Sheet, right: Sheet, apart: float = 34) -> Sheet:
    """Put two halves side by side, or below each other where they don't fit."""
    sheet = Sheet(width, 0)
    sheet.put(left, 0, 0)
    if width > NARROW:
        sheet.put(right, NARROW + GAP, 0)
    else:
        sheet.put(right, 0, left.height + apart)
    return sheet
