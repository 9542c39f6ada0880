"""Pictures of who holds what: inline SVG in notebooks and pages, text in a terminal.

``exchange`` draws a collective from each rank's values before and after it, and
``cluster`` draws nodes with their processes and GPUs. Lines and text take the page's
colour, light or dark. A rank has the same colour everywhere, but nothing is told by
colour alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from allranks.pictures.svg import PHONE, RANK_COLORS, document, either, figure, write
from allranks.sums.topology import describe, rank_of

NOTHING = "–"
PITCH, HEIGHT, GAP = 36, 30, 3  # row to row, height of a box, box to box; in SVG units


@dataclass(frozen=True, repr=False)
class Picture:
    """An SVG or a table, and the same facts as text."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


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
    text = f"{title}\n{_align(table)}"
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
                parts += _box(x, y, box, HEIGHT, fill(text), text == NOTHING)
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


def cluster(nodes: Sequence[int], gpus_per_node: int) -> Picture:
    """Draw the nodes of a cluster: each process on its GPU, and the idle GPUs.

    Args:
        nodes: processes on each node, by node rank.
        gpus_per_node: GPUs in each machine.
    Raises:
        ValueError: as ``topology.describe`` does.

    >>> cluster((2, 1), gpus_per_node=2)
    3 ranks on 2 nodes: 1 of 4 GPUs stay idle (0 + 1)
    node 0: rank 0–1, local rank 0–1, cuda:0–1
    node 1: rank 2, local rank 0, cuda:0; 1 idle
    """
    lines = [describe(nodes, gpus_per_node)]
    for node, num_processes in enumerate(nodes):
        first, num_idle = rank_of(nodes, node, 0), gpus_per_node - num_processes
        local, rest = _span(0, num_processes), f"; {num_idle} idle" if num_idle else ""
        where = f"local rank {local}, cuda:{local}{rest}"
        lines.append(f"node {node}: rank {_span(first, num_processes)}, {where}")
    text = "\n".join(lines)
    drawing = _machines(nodes, gpus_per_node, 8, text)
    if min(gpus_per_node, 8) * 54 + 15 > PHONE:
        drawing = either(drawing, _machines(nodes, gpus_per_node, 4, text))
    return Picture(figure(lines[0], drawing), text)


def _machines(nodes: Sequence[int], gpus_per_node: int, most: int, label: str) -> str:
    """Draw each node's frame with its GPUs, at most so many in a row."""
    width, per_row, pitch = 51, min(gpus_per_node, most), 66
    top, parts = 1, []
    for node, num_processes in enumerate(nodes):
        height = 26 + -(-gpus_per_node // per_row) * pitch
        frame = f'x="1" y="{top}" width="{per_row * 54 + 13}" height="{height}" rx="6"'
        parts.append(f'<rect {frame} fill="none" stroke="currentColor"/>')
        parts.append(write(9, top + 18, f"node {node}", "start", size=13))
        for gpu in range(gpus_per_node):
            x, y = 9 + gpu % per_row * 54, top + 26 + gpu // per_row * pitch
            center, idle = x + width / 2, gpu >= num_processes
            rank = None if idle else rank_of(nodes, node, gpu)
            parts += _box(x, y, width, 42, [] if idle else [rank], idle)
            parts.append(write(center, y + 56, f"cuda:{gpu}", size=12))
            if idle:
                parts.append(write(center, y + 25, "idle", size=12))
                continue
            parts.append(write(center, y + 18, f"rank {rank}", size=13))
            parts.append(write(center, y + 34, f"local {gpu}", size=12))
        top += height + 8
    return document(per_row * 54 + 15, top, label, parts)


def table(head: Sequence, rows: Sequence[Sequence]) -> Picture:
    """Set a table of the given cells, as HTML and as text.

    >>> table(["ranks", "steps"], [[1, 45], [4, 12]])
    ranks  steps
    1      45
    4      12
    """
    cells = [[str(value) for value in row] for row in (head, *rows)]
    html = ""
    for tag, row in zip(["th scope='col'", *["td"] * len(rows)], cells, strict=True):
        boxes = "".join(f"<{tag}>{escape(text)}</{tag[:2]}>" for text in row)
        html += f"<tr>{boxes}</tr>"
    return Picture(f"<table class='table'>{html}</table>", _align(cells))


def _span(first: int, number: int) -> str:
    return f"{first}" if number == 1 else f"{first}–{first + number - 1}"


def _labels(row: Any) -> list[str]:
    """Turn what a rank holds into the texts of its boxes."""
    row = row.tolist() if hasattr(row, "tolist") else row
    row = row if isinstance(row, (list, tuple)) else [row]
    texts = [f"{v:g}" if isinstance(v, float) else str(v) for v in row] or ["None"]
    return [NOTHING if text == "None" else text for text in texts]


def _box(
    x: int, y: int, width: int, height: int, ranks: list[int], dashed: bool
) -> list[str]:
    """Draw a box in its one rank's colour, or with a band of several ranks' colours."""
    colors = [RANK_COLORS[rank % len(RANK_COLORS)] for rank in ranks]
    style = "fill:none;stroke:currentColor"
    if len(ranks) == 1:
        style = f"fill:{colors[0]};fill-opacity:0.3;stroke:{colors[0]}"
    style += ";stroke-dasharray:3 3" if dashed else ""
    place = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="3"'
    parts = [f'<rect {place} style="{style}"/>']
    step = (width - 2) / max(1, len(ranks))
    for i, color in enumerate(colors if len(colors) > 1 else ()):
        left = f'x="{x + 1 + i * step:g}" y="{y + height - 6}"'
        parts.append(f'<rect {left} width="{step:g}" height="5" style="fill:{color}"/>')
    return parts


def _align(table: list[list[str]]) -> str:
    """Pad the columns of a table to equal widths."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = [[t.ljust(w) for t, w in zip(row, widths, strict=True)] for row in table]
    return "\n".join("  ".join(row).rstrip() for row in rows)
