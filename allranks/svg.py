"""The parts of our pictures: inline SVG in the page's colours, light or dark."""

from html import escape

# The book's colours where it defines them; else Okabe and Ito's, grey for black.
HUES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7"]
HUES += ["#56B4E9", "#D55E00", "#F0E442", "#888888"]
RANK_COLORS = [f"var(--rank-{rank}, {hue})" for rank, hue in enumerate(HUES)]


def write(x: float, y: int, text: str, anchor="middle", size=14, bold=False) -> str:
    """Write text in the page's colour."""
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{x:g}" y="{y}" font-size="{size}" text-anchor="{anchor}"{weight}'
    return f'<text {place} fill="currentColor">{escape(text)}</text>'


def document(width: int, height: int, label: str, parts: list[str]) -> str:
    """Join the parts; the label is what a screen reader says."""
    label = escape("; ".join(" ".join(line.split()) for line in label.splitlines()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" style="max-width:100%;height:auto" role="img" '
        f'font-family="system-ui, sans-serif" aria-label="{label}">'
        + "".join(parts)
        + "</svg>"
    )
