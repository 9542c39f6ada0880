"""A picture of a step of DDP: backward above, the all_reduce of each bucket below."""

from allranks.base.picture import Picture
from allranks.base.svg import RANK_COLORS, document, figure, write
from allranks.base.units import amount
from allranks.topics.buckets.sums import Step

LEFT, WIDTH, ROW, BOX = 92, 500, 34, 26  # in SVG units


def timeline(title: str, step: Step) -> Picture:
    """Draw a step over time; the text lists when each bucket is ready, starts and ends.

    The length of a box shows how long its work takes. Its name is in it if it fits.

    Args:
        title: stands above the picture.
        step: as ``sums.step`` returns it.
    """
    scale = WIDTH / (step.total or 1)
    lanes = [
        ("compute", [("forward", 0.0, step.forward)]),
        ("all_reduce", [(f"{i}", *b[3:]) for i, b in enumerate(step.buckets)]),
    ]
    # Backward begins with the last layer, and step.layers is in that order.
    lanes[0][1].extend((name, start, end) for name, _, start, end in step.layers)
    parts = []
    for row, (label, spans) in enumerate(lanes):
        y = 28 + row * ROW
        parts.append(write(0, y + 18, label, "start", size=13))
        style = f"fill:{RANK_COLORS[row]};fill-opacity:0.3;stroke:{RANK_COLORS[row]}"
        for name, start, end in spans:
            x, width = LEFT + start * scale, (end - start) * scale
            place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BOX}"'
            parts.append(f'<rect {place} style="{style}"/>')
            # A digit or letter is about 8 units wide.
            if 8 * len(name) < width:
                parts.append(write(round(x + width / 2, 1), y + 18, name, size=13))
    end = LEFT + step.computed * scale
    line = 'stroke="currentColor" stroke-dasharray="4 3"'
    parts.append(f'<path d="M{end:.1f} 22V{34 + 2 * ROW}" {line}/>')
    parts.append(write(end, 48 + 2 * ROW, "backward ends", "end", size=13))
    lines = [title, "bucket  bytes    ready    sent     there    layers"]
    for i, (num_bytes, layers, *times) in enumerate(step.buckets):
        when = "".join(amount(time, "s").ljust(9) for time in times)
        names = ", ".join(layers)
        lines.append(f"{i:<8}{amount(num_bytes, 'B'):<9}{when}{names}")
    text = "\n".join(lines)
    drawing = document(LEFT + WIDTH + 8, 56 + 2 * ROW, text, parts, top=20)
    return Picture(figure(title, drawing), text)
