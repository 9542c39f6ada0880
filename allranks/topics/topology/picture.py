"""The picture of a cluster: nodes with their processes and GPUs."""

from collections.abc import Sequence

from allranks.base.picture import Picture, draw_box
from allranks.base.svg import PHONE, document, either, figure, write
from allranks.topics.topology.sums import describe, rank_of


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
            parts += draw_box(x, y, width, 42, [] if idle else [rank], idle)
            parts.append(write(center, y + 56, f"cuda:{gpu}", size=12))
            if idle:
                parts.append(write(center, y + 25, "idle", size=12))
                continue
            parts.append(write(center, y + 18, f"rank {rank}", size=13))
            parts.append(write(center, y + 34, f"local {gpu}", size=12))
        top += height + 8
    return document(per_row * 54 + 15, top, label, parts)


def _span(first: int, number: int) -> str:
    return f"{first}" if number == 1 else f"{first}–{first + number - 1}"
