"""A picture of a step's memory: bytes over time, the deepest hue for weights."""

from allranks.base.picture import Picture
from allranks.base.svg import ON_WRONG, RANK_COLORS, WRONG, document, figure, write
from allranks.base.units import amount
from allranks.topics.memory.sums import KINDS, Span, peak

DEPTHS = 100, 68, 46, 84, 16, 56, 34  # % of each kind: far from those beside it
GROUND = "var(--pst-color-background, #fff)"  # thin lines of it part the layers
WIDTH, HIGH, TOP, NAMES = 470, 220, 24, 196  # SVG units


def skyline(spans: list[Span], kind: int) -> list[float]:
    """Return the height of the stack up to a kind, in each part of a step."""
    return [sum(span.held[: kind + 1]) for span in spans]


def mountain(title: str, spans: list[Span], gpu_gb: float) -> Picture:
    """Draw what is held over time, stacked by kind; the text lists the largest parts.

    What is above the line of the GPU's memory is black on yellow.

    Args:
        title: stands above the picture.
        spans: as ``sums.step`` returns them.
        gpu_gb: 10⁹ bytes of the GPU's memory.
    """
    room, top, end = 1e9 * gpu_gb, spans[peak(spans)], spans[-1].end
    # A GPU with far more memory than the peak would flatten the mountain.
    most = max(sum(top.held), min(room, 1.5 * sum(top.held)))

    def y(size: float) -> float:
        return round(TOP + HIGH - HIGH * size / most, 1)

    def outline(low: list[float], high: list[float]) -> str:
        """Trace an area between two heights of each part, there and back."""
        over, under = [], []
        for span, a, b in zip(spans, low, high, strict=True):
            left, right = (round(WIDTH * t / end, 1) for t in (span.start, span.end))
            over.append(f"{left} {y(b)}L{right} {y(b)}")
            under.append(f"{right} {y(a)}L{left} {y(a)}")
        return f"M{'L'.join([*over, *reversed(under)])}Z"

    hue, parts, low = RANK_COLORS[0], [], [0.0] * len(spans)
    for kind, depth in enumerate(DEPTHS):
        high = skyline(spans, kind)
        look = f"fill:{hue};fill-opacity:{depth / 100:g};stroke:{GROUND};stroke-width:1"
        parts.append(f'<path d="{outline(low, high)}" style="{look}"/>')
        low = high
        at = TOP + HIGH - 22 * kind
        box = f'x="{WIDTH + 14}" y="{at - 12}" width="14" height="14"'
        parts.append(f'<rect {box} style="{look}"/>')
        words = f"{KINDS[kind]} {amount(top.held[kind], 'B')}"
        parts.append(write(WIDTH + 34, at, words, "start", size=13))
    over = [max(room, total) for total in low]
    if max(over) > room:
        look = f'fill="{WRONG}" stroke="{ON_WRONG}"'
        parts.append(f'<path d="{outline([room] * len(spans), over)}" {look}/>')
    if room <= most:
        line = f'<path d="M0 {y(room)}H{WIDTH}" stroke="currentColor" fill="none"/>'
        parts += [line, write(2, int(y(room)) - 5, f"{gpu_gb:g} GB", "start", size=13)]
    words, low = (
        f"at the peak, {amount(sum(top.held), 'B')}:",
        TOP + HIGH - 22 * len(KINDS),
    )
    parts.append(write(WIDTH + 14, low, words, "start", size=13))
    for phase in "forward", "loss", "backward":
        one = [span for span in spans if span.phase == phase]
        middle = WIDTH * (one[0].start + one[-1].end) / 2 / end
        parts.append(write(round(middle, 1), TOP + HIGH + 18, phase, size=13))
    lines = [title]
    for span in sorted(spans, key=lambda one: -sum(one.held))[:3]:
        lines.append(f"{span.phase}: {span.name}  {amount(sum(span.held), 'B')}")
    text = "\n".join(lines)
    drawing = document(WIDTH + NAMES, TOP + HIGH + 26, text, parts)
    return Picture(figure(title, drawing), text)
