"""A picture of one step of nn.DataParallel: what each device holds after each part."""

from collections.abc import Sequence

from allranks.base.picture import NOTHING, Picture, align
from allranks.base.svg import RANK_COLORS, document, figure, write

LEFT, BOX, GAP, HEIGHT, PITCH = 106, 36, 3, 28, 40  # in SVG units

Boxes = Sequence[tuple[object, int]]  # (what is in the box, whose color it has)


def steps(title: str, rows: Sequence[tuple[str, Sequence[Boxes]]]) -> Picture:
    """Draw what each device holds after each step, one row per step.

    Args:
        title: stands above the picture.
        rows: the name of each step with the boxes of each device, in order.
    Raises:
        ValueError: if a row has not as many devices as the first.

    >>> steps("two", [("batch", [[(1, 0), (2, 1)], []]), ("cut", [[(1, 0)], [(2, 1)]])])
    two
           device 0  device 1
    batch  1 2       –
    cut    1         2
    """
    num_devices = len(rows[0][1])
    if any(len(held) != num_devices for _, held in rows):
        raise ValueError(f"every row needs boxes for {num_devices} devices")
    # A device's column is as wide as its fullest row, and fits its heading.
    counts = [max(len(held[d]) for _, held in rows) for d in range(num_devices)]
    widths = [max(2, count) * (BOX + GAP) + 22 for count in counts]
    lefts = [LEFT + sum(widths[:d]) for d in range(num_devices)]
    parts = []
    for device, left in enumerate(lefts):
        parts.append(write(left, 40, f"device {device}", "start", size=13))
        line = (
            f'x1="{left - 11}" x2="{left - 11}" y1="28" y2="{46 + len(rows) * PITCH}"'
        )
        style = 'stroke="currentColor" stroke-opacity="0.3"'
        parts.append(f"<line {line} {style}/>")
    for row, (name, held) in enumerate(rows):
        y = 50 + row * PITCH
        parts.append(write(0, y + 19, name, "start", size=13))
        for left, boxes in zip(lefts, held, strict=True):
            for i, (value, owner) in enumerate(boxes):
                x, color = left + i * (BOX + GAP), RANK_COLORS[owner % len(RANK_COLORS)]
                place = f'x="{x}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="3"'
                style = f"fill:{color};fill-opacity:0.3;stroke:{color}"
                parts.append(f'<rect {place} style="{style}"/>')
                parts.append(write(x + BOX / 2, y + 19, f"{value}", size=13))
    table = [["", *(f"device {device}" for device in range(num_devices))]]
    for name, held in rows:
        texts = [" ".join(f"{value}" for value, _ in boxes) for boxes in held]
        table.append([name, *(text or NOTHING for text in texts)])
    text = f"{title}\n{align(table)}"
    width, height = LEFT + sum(widths), 50 + len(rows) * PITCH
    return Picture(figure(title, document(width, height, text, parts, top=24)), text)
