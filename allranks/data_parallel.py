"""One step of nn.DataParallel: a picture of who holds what, and the bytes it moves."""

from collections.abc import Sequence

from allranks.pictures import Picture
from allranks.svg import RANK_COLORS, document, write

NOTHING = "–"
LEFT, BOX, GAP, HEIGHT, PITCH = 106, 36, 3, 28, 40  # in SVG units

Boxes = Sequence[tuple[object, int]]  # (what is in the box, whose colour it has)


def steps(title: str, rows: Sequence[tuple[str, Sequence[Boxes]]]) -> Picture:
    """Draw what each device holds after each step, one row per step.

    Args:
        rows: (name of the step, for each device its boxes), in order.
    Raises:
        ValueError: if a row has another number of devices than the first.

    >>> steps("two", [("batch", [[(1, 0), (2, 1)], []]), ("cut", [[(1, 0)], [(2, 1)]])])
    two
           device 0  device 1
    batch  1 2       –
    cut    1         2
    """
    num_devices = len(rows[0][1])
    if any(len(held) != num_devices for _, held in rows):
        raise ValueError(f"every row needs boxes for {num_devices} devices")
    counts = [max(len(held[d]) for _, held in rows) for d in range(num_devices)]
    widths = [max(2, count) * (BOX + GAP) + 22 for count in counts]
    lefts = [LEFT + sum(widths[:d]) for d in range(num_devices)]
    parts = [write(0, 15, title, "start", bold=True)]
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
    columns = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(t.ljust(w) for t, w in zip(row, columns, strict=True)).rstrip()
        for row in table
    ]
    text = "\n".join([title, *lines])
    width, height = max(LEFT + sum(widths), 8 * len(title)), 50 + len(rows) * PITCH
    return Picture(document(width, height, text, parts), text)


def step_bytes(
    num_devices: int, param_bytes: int, output_bytes: int, buffer_bytes: int = 0
) -> list[tuple[int, int]]:
    """Bytes that each device sends to and receives from the others in one step.

    Replicate sends parameters and buffers from device 0, gather the outputs to it; in
    backward the outputs' gradients go out again, and the parameters' come in. The
    batch, which comes from the host, is not counted.

    Args:
        output_bytes: of the whole batch's outputs, cut into equal shares.
    Raises:
        ValueError: if num_devices < 1, or the outputs cannot be cut evenly.
    Source:
        torch/nn/parallel/data_parallel.py and _functions.py, and the tests, which
        count what the real class moves between virtual GPUs.

    >>> step_bytes(4, param_bytes=100, output_bytes=40)
    [(330, 330), (110, 110), (110, 110), (110, 110)]
    """
    if num_devices < 1 or output_bytes % num_devices:
        raise ValueError(f"{output_bytes} bytes on {num_devices} devices: no even cut")
    share = output_bytes // num_devices
    sent, received = param_bytes + share, param_bytes + buffer_bytes + share
    others = num_devices - 1
    return [(others * received, others * sent), *[(sent, received)] * others]


def ring_bytes(world_size: int, num_bytes: int) -> float:
    """Bytes that each rank sends, and receives, in a ring all-reduce of num_bytes.

    Raises:
        ValueError: if world_size < 1.
    Source:
        Patarasuk & Yuan, JPDC 69(2), 2009: 2(W-1) messages of n/W bytes each.

    >>> ring_bytes(4, 100)
    150.0
    """
    if world_size < 1:
        raise ValueError(f"world_size {world_size}: must be at least 1")
    return 2 * (world_size - 1) * num_bytes / world_size
