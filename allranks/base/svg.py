"""The parts of the pictures: inline SVG in the page's colors, light or dark.

A picture is as wide as its column, until its letters are a third larger than those of a
page. What would be too small on a phone is drawn twice, and CSS chooses one of the two.
Titles and legends are HTML, so that they break into lines and are never cut.
"""

from html import escape

# A rank's color for text on a light ground, for text on a dark one, and in between for
# a host that defines neither. Neighbors differ for color-blind readers too.
LIGHT = ["#2639a0", "#a54a01", "#37745d", "#5f2962"]
LIGHT += ["#017991", "#d1007a", "#47450b", "#7a57d7"]
DARK = ["#a3aeff", "#ef9e68", "#55c9a1", "#c78ac6"]
DARK += ["#8edcfa", "#f261ff", "#f5de84", "#9086d3"]
HUES = ["#6275c4", "#b9621e", "#41856b", "#956b98"]
HUES += ["#11849d", "#c9449a", "#847b35", "#8167d6"]
RANK_COLORS = [f"var(--rank-{rank}, {hue})" for rank, hue in enumerate(HUES)]

# The law of color: red is a rank that waits, and nothing else is red. Hue is the rank,
# depth (how much of the hue) the kind of work. What is wrong, or does not fit, is black
# on yellow.
WAITING = "var(--waiting, #d0342c)"
WAITS = f"fill:{WAITING};fill-opacity:var(--waiting-depth, 0.3);stroke:{WAITING}"
WRONG, ON_WRONG = "#ffe45c", "#1b1b1b"

PHONE = 364  # px: the width of a picture on a small phone
LARGEST = 1.3  # times its own size: letters of 14 px become 18
CHOOSE = (
    "<style>.picture-narrow{display:none}@container (max-width:40rem){"
    ".picture-wide{display:none}.picture-narrow{display:block}}</style>"
)


def write(
    x: float,
    y: int,
    text: str,
    anchor: str = "middle",
    size: int = 14,
    bold: bool = False,
) -> str:
    """Return an SVG text in the page's color.

    Args:
        x, y: its place, in SVG units; y is that of its base line.
        anchor: whether x is its "start", "middle" or "end".
        size: of the font, in SVG units.
    """
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{x:g}" y="{y}" font-size="{size}" text-anchor="{anchor}"{weight}'
    return f'<text {place} fill="currentColor">{escape(text)}</text>'


def red(x: float, y: float, width: float, height: float, what: str = "") -> str:
    """Return the box of a time in which a rank waits; ``what`` is its tool tip."""
    tip = f"<title>{escape(what)}</title>" if what else ""
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {size} style="{WAITS}">{tip}</rect>'


def document(
    width: float, height: float, label: str, parts: list[str], top: float = 0
) -> str:
    """Join the parts into an SVG document.

    Args:
        width, height: where the drawing ends, in SVG units.
        label: what a screen reader reads; lines become parts of a sentence.
        top: where it begins.
    """
    label = escape("; ".join(" ".join(line.split()) for line in label.splitlines()))
    size = f'viewBox="0 {top:g} {width:g} {height - top:g}" width="{width:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
        f'style="width:100%;max-width:{LARGEST * width:.0f}px;height:auto" role="img" '
        f'font-family="system-ui, sans-serif" aria-label="{label}">'
        + "".join(parts)
        + "</svg>"
    )


def either(wide: str, narrow: str) -> str:
    """Return two drawings of the same, of which one is shown: for a column or a phone.

    The element around them has to be a container (``container-type:inline-size``).
    """
    return (
        f'{CHOOSE}<div class="picture-wide">{wide}</div>'
        f'<div class="picture-narrow no-paper">{narrow}</div>'
    )


def figure(title: str, drawing: str, legend: str = "") -> str:
    """Return a drawing with its title above it, and below it what its marks mean."""
    legend = f"<p>{escape(legend)}</p>" if legend else ""
    look = "margin:1em 0"
    if "picture-narrow" in drawing:  # its width must come from outside, or be said
        look += ";container-type:inline-size;contain-intrinsic-width:728px"
    return (
        f'<figure class="picture" style="{look}">'
        f"<figcaption><b>{escape(title)}</b></figcaption>{drawing}{legend}</figure>"
    )
