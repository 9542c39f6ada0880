"""Ranks that come to a collective one by one, drawn over time."""

from collections.abc import Sequence

from allranks.base.picture import Picture, draw_box
from allranks.base.svg import RANK_COLORS, document, red, write
from allranks.topics.arrivals import sums

WIDTH, LEFT, LANE = 720, 70, 46


def lanes(
    arrives: Sequence[float | None], timeout: float, holds: Sequence[int]
) -> Picture:
    """Draw when each rank calls a collective, how long it waits, what it holds then.

    Args:
        arrives: when each rank calls it, in seconds; None for never.
        timeout: where the drawing ends, in seconds.
        holds: each rank's value at the end.

    >>> lanes([1.0, None], timeout=3, holds=[0, 1])
    rank 0: calls it after 1 s, waits 2 s, holds 0
    rank 1: never calls it, holds 1
    """
    begins, waits = sums.waits(arrives, timeout)
    scale = (WIDTH - LEFT - 90) / timeout
    parts, lines = [], []
    for rank, (at, wait, value) in enumerate(zip(arrives, waits, holds, strict=True)):
        y, color = 8 + rank * LANE, RANK_COLORS[rank % 8]
        until = LEFT + scale * (timeout if at is None else at)
        parts.append(write(0, y + 23, f"rank {rank}", "start"))
        dashed = ' stroke-dasharray="4 3"' if at is None else ""
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{until - LEFT:g}" height="32" rx="3" '
            f'fill="{color}" fill-opacity="0.25" stroke="{color}"{dashed}/>'
        )
        words = "never calls all_reduce" if at is None else "works"
        parts.append(write(LEFT + 8, y + 21, words, "start", 13))
        line = f"rank {rank}: never calls it" if at is None else ""
        if at is not None:
            parts.append(red(until, y, wait * scale, 32))
            # The word does not fit into a shorter box.
            if wait * scale > 50:
                middle = until + wait * scale / 2
                parts.append(write(middle, y + 21, "waits", size=13))
            line = f"rank {rank}: calls it after {at:g} s, waits {round(wait, 3):g} s"
        # Stripes say whose numbers are in it: those of all, or only its own.
        inside = [rank] if begins is None else list(range(len(arrives)))
        parts += draw_box(WIDTH - 32, y + 2, 30, 28, inside, dashed=False)
        parts.append(write(WIDTH - 17, y + 18, f"{value}", bold=True))
        parts.append(write(WIDTH - 38, y + 21, "holds", "end", 13))
        lines.append(f"{line}, holds {value}")
    # The collective begins when the last rank comes, so not at all if one never does.
    if begins is not None:
        x = LEFT + begins * scale
        parts.append(
            f'<path d="M{x:g} 2V{8 + len(arrives) * LANE}" stroke="currentColor" '
            'stroke-width="2"/>'
        )
    text = "\n".join(lines)
    return Picture(document(WIDTH, 12 + len(arrives) * LANE, text, parts), text)
