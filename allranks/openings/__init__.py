"""The picture that opens a chapter: its idea in one look, before any code.

A module with the name of a page is its picture: a sentence ``ALT`` that says what the
picture shows, and ``draw``. A picture is drawn twice: ``WIDE`` for a column, its halves
side by side, and ``NARROW`` for a phone, where they stand one below the other. Letters
keep their size in both.

``thumbnail`` is the picture without its words, small, beside a text that names it.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

from allranks.base.svg import WRONG
from allranks.openings.sheet import NARROW, WIDE

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*_*.py"))
LEAST = 16  # the height of a box that belongs to the drawing, not to its legend
# What says something only with its letters: they, numbers in a disc, words on yellow.
WORDS = re.compile(
    rf'<text\b.*?</text>|<circle[^>]*r="12"[^>]*/>|<rect[^>]*"fill:{WRONG}"/>',
    re.DOTALL,
)
POINT = re.compile(r"[ML](-?[\d.]+) (-?[\d.]+)")


def opening(name: str, narrow: bool = False) -> str:
    """Return the picture that opens a page, as SVG.

    Raises:
        LookupError: if no picture has this name.
    """
    if name not in NAMES:
        raise LookupError(f"no opening {name}: there are {', '.join(NAMES)}")
    module = import_module(f"{__name__}.{name}")
    return module.draw(NARROW if narrow else WIDE).svg(module.ALT)


def thumbnail(name: str) -> str:
    """Return the shapes of the wide picture that opens a page, cropped, as SVG.

    Letters would be too small to read, and the text around it says what they say.
    """
    svg = WORDS.sub("", opening(name))
    tree = ElementTree.fromstring(svg)
    points = list(_corners(tree, 0, 0))
    (left, right), (top, bottom) = ((min(p), max(p)) for p in zip(*points, strict=True))
    box = f"{left - 2:g} {top - 2:g} {right - left + 4:g} {bottom - top + 4:g}"
    shapes = svg[svg.index(">") + 1 :]
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}"'
    return f'{start} aria-hidden="true">{shapes}'


def _corners(node: ElementTree.Element, x: float, y: float) -> Iterator[tuple]:
    """Yield points that a thumbnail has to show: those of boxes, lines and arrows."""
    for child in node:
        kind = child.tag.rpartition("}")[2]
        if kind == "g":
            dx, dy = map(float, re.findall(r"-?[\d.]+", child.get("transform")))
            yield from _corners(child, x + dx, y + dy)
        elif kind == "path":
            for px, py in POINT.findall(child.get("d")):
                yield x + float(px), y + float(py)
        elif kind == "rect":
            names = "x", "y", "width", "height"
            left, top, width, height = (float(child.get(name)) for name in names)
            if height >= LEAST:
                yield x + left, y + top
                yield x + left + width, y + top + height
