"""A picture of a step of DDP: backward above, the all_reduce of each bucket below."""

from allranks.base.picture import Picture
from allranks.base.svg import document, figure, red, write
from allranks.base.units import amount
from allranks.topics.buckets.sums import Step

LEFT, WIDTH, ROW, BOX = 92, 500, 34, 26  # in SVG units
FORWARD, BACKWARD = 0.12, 0.32  # depths of gray: all ranks do the same
HATCH = (  # what travels
    '<pattern id="buckets-sent" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path d="M0 3H6" stroke="currentColor" '
    'stroke-opacity="0.4" stroke-width="2"/></pattern>'
)


def timeline(title: str, step: Step) -> Picture:
    """Draw a step over time; the text lists when each bucket is ready, starts and ends.

    The length of a box shows how long its work takes. Its name is in it if it fits. A
    red box is the time in which a rank waits for what backward does not hide.

    Args:
        title: stands above the picture.
        step: as ``sums.step`` returns it.
    """
    scale = WIDTH / (step.total or 1)
    # Backward begins with the last layer, and step.layers is in that order.
    computes = [("forward", 0.0, step.forward, FORWARD)]
    computes += [(name, start, end, BACKWARD) for name, _, start, end in step.layers]
    sends = [(f"{i}", b.start, b.end, None) for i, b in enumerate(step.buckets)]
    parts = [HATCH]
    for row, (label, spans) in enumerate(
        [("compute", computes), ("all_reduce", sends)]
    ):
        y = 28 + row * ROW
        parts.append(write(0, y + 18, label, "start", size=13))
        for name, start, end, depth in spans:
            x, width = LEFT + start * scale, (end - start) * scale
            place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BOX}"'
            fill = "currentColor" if depth else "url(#buckets-sent)"
            line = f'fill-opacity="{depth or 1}" stroke="currentColor"'
            parts.append(f'<rect {place} fill="{fill}" {line} stroke-opacity="0.6"/>')
            # A digit or letter is about 8 units wide.
            if depth and 8 * len(name) < width:
                parts.append(write(round(x + width / 2, 1), y + 18, name, size=13))
    end = LEFT + step.computed * scale
    waits = step.total - step.computed
    if waits > 0:
        words = f"waits {amount(waits, 's')}"
        parts.append(red(end, 28, waits * scale, BOX, words))
        if 8 * len(words) < waits * scale:
            middle = round(end + waits * scale / 2, 1)
            parts.append(write(middle, 46, words, size=13))
    line = 'stroke="currentColor" stroke-dasharray="4 3"'
    parts.append(f'<path d="M{end:.1f} 22V{34 + 2 * ROW}" {line}/>')
    parts.append(write(end, 48 + 2 * ROW, "backward ends", "end", size=13))
    lines = [title, "bucket  bytes    ready    sent     there    layers"]
    for i, bucket in enumerate(step.buckets):
        times = bucket.ready, bucket.start, bucket.end
        when = "".join(amount(time, "s").ljust(9) for time in times)
        names = ", ".join(bucket.layers)
        lines.append(f"{i:<8}{amount(bucket.num_bytes, 'B'):<9}{when}{names}")
    text = "\n".join(lines)
    drawing = document(LEFT + WIDTH + 8, 56 + 2 * ROW, text, parts, top=20)
    return Picture(figure(title, drawing), text)
