"""The picture of a collective: what each rank has before and after it."""

from collections.abc import Callable, Sequence
from typing import Any

from allranks.base.picture import NOTHING, Picture, align, draw_box
from allranks.base.svg import PHONE, document, either, figure, write

PITCH, HEIGHT, GAP = 36, 30, 3  # row to row, height of a box, box to box; in SVG units


def exchange(
    title: str,
    before: Sequence,
    after: Sequence,
    made_from: Callable[[str], list[int]] | None = None,
) -> Picture:
    """Draw what each rank holds before and after a collective.

    A value that a rank held before keeps that rank's colour. A new value carries a
    band with the colours of the ranks that it was made from.

    Args:
        title: stands above the picture.
        before: by rank: a number, a list of numbers, a tensor, or None for nothing.
        after: likewise.
        made_from: returns the ranks whose values went into a new value, given its
            text; by default all ranks.
    Raises:
        ValueError: if before and after have different numbers of ranks, or none.

    >>> exchange("broadcast from rank 0", before=[7, None], after=[7, 7])
    broadcast from rank 0
            before  after
    rank 0  7       7
    rank 1  –       7
    """
    if not len(before) or len(before) != len(after):
        raise ValueError(f"{len(before)} ranks before, {len(after)} ranks after")
    held = [[_labels(row) for row in rows] for rows in (before, after)]
    owner = {text: rank for rank, row in enumerate(held[0]) for text in row}
    ranks = list(range(len(before)))

    # A text is the only thing that ties a value after to one before; of two ranks with
    # equal values, the last one counts as its owner.
    def fill(text: str) -> list[int]:
        if text == NOTHING:
            return []
        if text in owner:
            return [owner[text]]
        return ranks if made_from is None else made_from(text)

    table = [["", "before", "after"]] + [
        [f"rank {rank}", " ".join(old), " ".join(new)]
        for rank, (old, new) in enumerate(zip(*held, strict=True))
    ]
    text = f"{title}\n{align(table)}"
    drawing, width = _rows(held, fill, text)
    if width > PHONE:
        drawing = either(drawing, _rows(held, fill, text, stacked=True)[0])
    return Picture(figure(title, drawing), text)


def _rows(
    held: list[list[list[str]]],
    fill: Callable[[str], list[int]],
    label: str,
    stacked: bool = False,
) -> tuple[str, int]:
    """Draw the boxes before and after, side by side or stacked; return (SVG, width)."""
    # All boxes are as wide as the longest text, so that columns line up.
    box = max(34, 10 + 8 * max(len(t) for rows in held for row in rows for t in row))
    left, top, width, parts = 54, 0, 0, []
    for heading, rows in zip(("before", "after"), held, strict=True):
        parts.append(write(left, top + 14, heading, "start", size=13))
        for rank, row in enumerate(rows):
            y = top + 22 + rank * PITCH
            if heading == "before" or stacked:
                parts.append(write(0, y + 19, f"rank {rank}", "start", size=13))
            for i, text in enumerate(row):
                x = left + i * (box + GAP)
                parts += draw_box(x, y, box, HEIGHT, fill(text), text == NOTHING)
                parts.append(write(x + box / 2, y + 19, text))
        right = left + max(map(len, rows)) * (box + GAP)
        width = max(width, right)
        if heading == "after":
            break
        if stacked:
            top += 22 + len(rows) * PITCH + 14
            arrow = f"M{left + 17} {top - 18}v20m-6 -6l6 6l6 -6"
            top += 4
        else:
            middle = 19 + len(rows) * PITCH // 2
            arrow = f"M{right + 6} {middle}h20m-6 -6l6 6l-6 6"
            left = right + 36
        parts.append(f'<path d="{arrow}" fill="none" stroke="currentColor"/>')
    height = top + 22 + len(held[1]) * PITCH
    return document(width, height, label, parts), width


def _labels(row: Any) -> list[str]:
    """Turn what a rank holds into the texts of its boxes."""
    row = row.tolist() if hasattr(row, "tolist") else row
    row = row if isinstance(row, (list, tuple)) else [row]
    texts = [f"{v:g}" if isinstance(v, float) else str(v) for v in row] or ["None"]
    return [NOTHING if text == "None" else text for text in texts]
