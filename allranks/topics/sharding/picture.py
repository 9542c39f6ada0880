"""A picture of sharding: what each rank holds at most, with DDP and each stage."""

from collections.abc import Sequence

from allranks.base.picture import Picture, align
from allranks.base.svg import (
    ON_WRONG,
    RANK_COLORS,
    WRONG,
    document,
    figure,
    write,
)
from allranks.base.units import amount

WIDTH, LEFT, RIGHT, PITCH, BAR = 720, 66, 92, 40, 26  # in SVG units
# How deep a rank's color is, in %: weights, gradients, optimizer state.
DEPTHS = 52, 20, 36


def tanks(
    world_size: int,
    limit: float,
    rows: Sequence[tuple[str, Sequence[float], float]],
) -> Picture:
    """Draw what each rank holds at most, one row per stage, and what does not fit.

    Args:
        world_size: number of ranks; all hold the same.
        limit: bytes of a GPU's memory.
        rows: the name of each stage, the bytes of each of ``sums.KINDS``, the bytes
            that a rank sends in a step.

    >>> tanks(2, 80e9, [("DDP", (14e9, 14e9, 84e9), 28e9)])
    stage  weights  gradients  optimizer state  in all  fits into 80 GB  sends
    DDP    14 GB    14 GB      84 GB            112 GB  no               28 GB
    """
    most = max([limit, *(sum(parts) for _, parts, _ in rows)])
    column = (WIDTH - LEFT - RIGHT) / world_size
    scale = (column - 8) / most
    head = [(LEFT + rank * column, f"rank {rank}") for rank in range(world_size)]
    parts = [write(x, 12, words, "start", 13) for x, words in head]
    for row, (name, kinds, num) in enumerate(rows):
        y, total = 20 + row * PITCH, sum(kinds)
        parts.append(write(0, y + 18, name, "start", 13, bold=True))
        for rank in range(world_size):
            x = LEFT + rank * column
            parts += _tank(x, y, scale, kinds, RANK_COLORS[rank % 8])
            end = x + limit * scale  # a GPU's memory ends here
            if total > limit:
                size = f'x="{end:.1f}" width="{(total - limit) * scale:.1f}"'
                look = f'fill="{WRONG}" stroke="{ON_WRONG}"'
                parts.append(f'<rect {size} y="{y}" height="{BAR}" {look}/>')
            parts.append(
                f'<path d="M{end:.1f} {y - 3}v{BAR + 6}" stroke="currentColor"/>'
            )
        x = WIDTH - RIGHT + 4
        parts.append(write(x, y + 11, f"holds {amount(total, 'B')}", "start", 12))
        parts.append(write(x, y + 26, f"sends {amount(num, 'B')}", "start", 12))
    fits = f"fits into {amount(limit, 'B')}"
    names = "weights", "gradients", "optimizer state", "in all", fits, "sends"
    lines = [["stage", *names]]
    for name, kinds, num in rows:
        sizes = [amount(size, "B") for size in (*kinds, sum(kinds))]
        yes = "yes" if sum(kinds) <= limit else "no"
        lines.append([name, *sizes, yes, amount(num, "B")])
    text = align(lines)
    legend = "from left: weights, gradients, optimizer state; line: a GPU's memory; "
    legend += "yellow: does not fit"
    drawing = document(WIDTH, 20 + len(rows) * PITCH, text, parts)
    return Picture(figure("What each rank holds at most", drawing, legend), text)


def _tank(
    x: float, y: int, scale: float, kinds: Sequence[float], color: str
) -> list[str]:
    """Draw a rank's bar."""
    parts = []
    for depth, size in zip(DEPTHS, kinds, strict=True):
        box = f'x="{x:.1f}" y="{y}" width="{size * scale:.1f}" height="{BAR}"'
        look = f"fill:{color};fill-opacity:{depth / 100:g};stroke:{color}"
        parts.append(f'<rect {box} style="{look}"/>')
        x += size * scale
    return parts
