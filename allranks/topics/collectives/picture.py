"""The picture of a collective: what each rank has before and after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from allranks.base.picture import NOTHING, Picture, align, draw_box
from allranks.base.svg import PHONE, document, either, figure, write

GAP = 3  # from box to box, in SVG units
Sources = Callable[[str], Sequence[int]] | Sequence[int] | None


@dataclass(frozen=True)
class Grid:
    """The sizes of a drawing, in SVG units.

    Attributes:
        pitch: from row to row.
        height: of a box.
        box: its width; 0 is as wide as the longest text needs.
        left: where the boxes begin, after the names of the ranks.
        letters: the size of the texts.
        columns: how many boxes a row has room for; 0 is as many as the longest row has.
    """

    pitch: int = 36
    height: int = 30
    box: int = 0
    left: int = 54
    letters: int = 14
    columns: int = 0


# A gallery compares its pictures, so each has the same boxes in the same places.
GALLERY = Grid(pitch=29, height=26, box=44, left=46, letters=12, columns=4)


def exchange(
    title: str,
    before: Sequence,
    after: Sequence,
    made_from: Sources = None,
) -> Picture:
    """Draw what each rank holds before and after a collective.

    What a rank holds before has its color. A result has the color of the rank that
    it came from, or a band with the colors of the ranks that it is the sum of.

    Args:
        title: stands above the picture.
        before: by rank: a number, a list of numbers, a tensor, or None for nothing.
        after: likewise.
        made_from: the ranks whose values went into every result, or a function that
            returns them for a result's text. By default they are guessed: a text that
            a rank held before came from that rank, and any other from all ranks. So
            say it for sums of small numbers: a sum of 6 is not the 6 of another rank.
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
    fills = _fills(held, made_from)
    table = [["", "before", "after"]] + [
        [f"rank {rank}", " ".join(old), " ".join(new)]
        for rank, (old, new) in enumerate(zip(*held, strict=True))
    ]
    text = f"{title}\n{align(table)}"
    drawing, width = _rows(held, fills, text)
    # On a phone, "after" stands below "before" if both do not fit side by side.
    if width > PHONE:
        drawing = either(drawing, _rows(held, fills, text, stacked=True)[0])
    return Picture(figure(title, drawing), text)


def tile(
    title: str, before: Sequence, after: Sequence, made_from: Sources = None
) -> Picture:
    """Draw an exchange for a gallery: before above after, all tiles of one size.

    Args:
        title, before, after, made_from: as for ``exchange``.
    """
    whole = exchange(title, before, after, made_from)
    held = [[_labels(row) for row in rows] for rows in (before, after)]
    fills = _fills(held, made_from)
    drawing, _ = _rows(held, fills, whole.text, stacked=True, grid=GALLERY)
    return Picture(figure(title, drawing), whole.text)


def _fills(held: list[list[list[str]]], made_from: Sources) -> list:
    """Return the ranks that give each box its colors, in the order of ``held``."""
    ranks = range(len(held[0]))
    # The guess: of two ranks with equal texts, the last one counts as the owner.
    owner = {text: rank for rank, row in enumerate(held[0]) for text in row}

    def sources(text: str) -> Sequence[int]:
        if callable(made_from):
            return made_from(text)
        if made_from is not None:
            return made_from
        return [owner[text]] if text in owner else ranks

    before = [[[rank]] * len(row) for rank, row in enumerate(held[0])]
    after = [[sources(text) for text in row] for row in held[1]]
    return [
        [
            [[] if text == NOTHING else [*who] for text, who in zip(*row, strict=True)]
            for row in zip(texts, whose, strict=True)
        ]
        for texts, whose in zip(held, (before, after), strict=True)
    ]


def _rows(
    held: list[list[list[str]]],
    fills: list,
    label: str,
    stacked: bool = False,
    grid: Grid = Grid(),
) -> tuple[str, int]:
    """Draw the boxes before and after, side by side or stacked; return (SVG, width)."""
    # All boxes are as wide as the longest text, so that columns line up.
    longest = max(len(t) for rows in held for row in rows for t in row)
    box = grid.box or max(34, 10 + 8 * longest)
    small, pitch = min(13, grid.letters), grid.pitch
    centered = grid.height // 2 + 4  # from a box's top to the base line of its text
    left, top, width, parts = grid.left, 0, 0, []
    for heading, rows, colors in zip(("before", "after"), held, fills, strict=True):
        parts.append(write(left, top + 14, heading, "start", size=small))
        for rank, row in enumerate(rows):
            y = top + 22 + rank * pitch
            if heading == "before" or stacked:
                parts.append(
                    write(0, y + centered, f"rank {rank}", "start", size=small)
                )
            for i, text in enumerate(row):
                x = left + i * (box + GAP)
                look = colors[rank][i], text == NOTHING
                parts += draw_box(x, y, box, grid.height, *look)
                # A text stays above the band of colors at its box's foot.
                drop = grid.height - 11 if len(look[0]) > 1 else centered
                parts.append(write(x + box / 2, y + drop, text, size=grid.letters))
        right = left + (grid.columns or max(map(len, rows))) * (box + GAP)
        width = max(width, right)
        if heading == "after":
            break
        if stacked:
            top += 22 + len(rows) * pitch + 14
            arrow = f"M{left + 17} {top - 18}v20m-6 -6l6 6l6 -6"
            top += 4
        else:
            middle = 19 + len(rows) * pitch // 2
            arrow = f"M{right + 6} {middle}h20m-6 -6l6 6l-6 6"
            left = right + 36
        parts.append(f'<path d="{arrow}" fill="none" stroke="currentColor"/>')
    height = top + 22 + len(held[1]) * pitch
    return document(width, height, label, parts), width


def _labels(row: Any) -> list[str]:
    """Turn what a rank holds into the texts of its boxes."""
    row = row.tolist() if hasattr(row, "tolist") else row
    row = row if isinstance(row, (list, tuple)) else [row]
    texts = [f"{v:g}" if isinstance(v, float) else str(v) for v in row] or ["None"]
    return [NOTHING if text == "None" else text for text in texts]
