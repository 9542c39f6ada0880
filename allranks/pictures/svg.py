"""The parts of the pictures: inline SVG in the page's colours, light or dark."""

from html import escape

# A rank's colour for text on a light ground, for text on a dark one, and in between for
# a host that defines neither. Neighbours differ for colour-blind readers too.
LIGHT = ["#2639a0", "#a54a01", "#37745d", "#5f2962"]
LIGHT += ["#017991", "#b93e57", "#47450b", "#7a57d7"]
DARK = ["#a9bbee", "#ed9e69", "#84f9cb", "#a983ac"]
DARK += ["#8edcfa", "#d88192", "#f5de84", "#9086d3"]
HUES = ["#6275c4", "#b9621e", "#41856b", "#956b98"]
HUES += ["#11849d", "#c4556b", "#847b35", "#8167d6"]
RANK_COLORS = [f"var(--rank-{rank}, {hue})" for rank, hue in enumerate(HUES)]


def write(
    x: float,
    y: int,
    text: str,
    anchor: str = "middle",
    size: int = 14,
    bold: bool = False,
) -> str:
    """Return an SVG text in the page's colour.

    Args:
        x, y: its place, in SVG units; y is that of its base line.
        anchor: whether x is its "start", "middle" or "end".
        size: of the font, in SVG units.
    """
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{x:g}" y="{y}" font-size="{size}" text-anchor="{anchor}"{weight}'
    return f'<text {place} fill="currentColor">{escape(text)}</text>'


def document(width: int, height: int, label: str, parts: list[str]) -> str:
    """Join the parts into an SVG document.

    Args:
        width, height: in SVG units.
        label: what a screen reader reads; lines become parts of a sentence.
    """
    label = escape("; ".join(" ".join(line.split()) for line in label.splitlines()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" style="max-width:100%;height:auto" role="img" '
        f'font-family="system-ui, sans-serif" aria-label="{label}">'
        + "".join(parts)
        + "</svg>"
    )
