"""A picture: inline SVG or a table in notebooks and pages, text in a terminal.

Lines and text take the page's color, light or dark. A rank has the same color
everywhere, but nothing is told by color alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from allranks.base.svg import RANK_COLORS

NOTHING = "–"  # what a rank shows that has no value


@dataclass(frozen=True, repr=False)
class Picture:
    """An SVG or a table, and the same facts as text."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def table(head: Sequence, rows: Sequence[Sequence]) -> Picture:
    """Set a table of the given cells, as HTML and as text.

    >>> table(["ranks", "steps"], [[1, 45], [4, 12]])
    ranks  steps
    1      45
    4      12
    """
    cells = [[str(value) for value in row] for row in (head, *rows)]
    html = ""
    for tag, row in zip(["th scope='col'", *["td"] * len(rows)], cells, strict=True):
        boxes = "".join(f"<{tag}>{escape(text)}</{tag[:2]}>" for text in row)
        html += f"<tr>{boxes}</tr>"
    return Picture(f"<table class='table'>{html}</table>", align(cells))


def draw_box(
    x: int, y: int, width: int, height: int, ranks: list[int], dashed: bool
) -> list[str]:
    """Draw a box in its one rank's color, or with a band of several ranks' colors."""
    colors = [RANK_COLORS[rank % len(RANK_COLORS)] for rank in ranks]
    style = "fill:none;stroke:currentColor"
    if len(ranks) == 1:
        style = f"fill:{colors[0]};fill-opacity:0.3;stroke:{colors[0]}"
    style += ";stroke-dasharray:3 3" if dashed else ""
    place = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="3"'
    parts = [f'<rect {place} style="{style}"/>']
    step = (width - 2) / max(1, len(ranks))
    for i, color in enumerate(colors if len(colors) > 1 else ()):
        left = f'x="{x + 1 + i * step:g}" y="{y + height - 6}"'
        parts.append(f'<rect {left} width="{step:g}" height="5" style="fill:{color}"/>')
    return parts


def align(table: list[list[str]]) -> str:
    """Pad the columns of a table to equal widths."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = [[t.ljust(w) for t, w in zip(row, widths, strict=True)] for row in table]
    return "\n".join("  ".join(row).rstrip() for row in rows)
