"""Pictures of pipelines: who works when, and how much of the time is work."""

import re
from collections.abc import Mapping, Sequence

from allranks.pictures.held import Picture, table
from allranks.pictures.svg import RANK_COLORS, document, write
from allranks.sums.pipelines import Work, bubble

LEFT, ROW, BOX = 52, 32, 26  # labels, row to row, box; in SVG units
_PRIME = "'"
PLOT = (56, 34, 470, 230)  # left, top, width, height of a plot's frame
_BOX = re.compile(r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)" ([^>]*)/>')
_DIGIT = re.compile(r'<text x="(\S+)" y="(\d+)" ([^>]*"middle"[^>]*)>(\d)</text>')


def schedule(title: str, works: Sequence[Work], unit: float = 1.0) -> Picture:
    """Draw who works on which micro-batch when; where a row is blank, the rank idles.

    A forward pass is a faint box and a backward pass a strong one, each with the number
    of its micro-batch. If backward is split, the weights' part is dashed. A bar on top
    marks the stages of a rank after its first. On a page, where the figure has
    controls, ``draw`` in ``allranks/explorables/pipelines.js`` draws the same.

    Args:
        title: stands above the picture.
        works: in any unit of time, from a ``timetable`` or recorded.
        unit: the length of a forward pass.
    """
    num_ranks = 1 + max(work.rank for work in works)
    begin = min(work.start for work in works)
    length = (max(work.end for work in works) - begin) / unit
    scale = min(26.0, 560 / length)
    lines, parts = [title], [write(0, 15, title, "start", bold=True)]
    for rank in range(num_ranks):
        y, color = 28 + rank * ROW, RANK_COLORS[rank % len(RANK_COLORS)]
        parts.append(write(0, y + 18, f"rank {rank}", "start", size=13))
        parts.append(
            f'<path d="M{LEFT} {y + BOX + 2.5}h{length * scale:.1f}" '
            'stroke="currentColor" stroke-opacity="0.25"/>'
        )
        mine = sorted((w for w in works if w.rank == rank), key=lambda w: w.start)
        said, free, busy = [], begin, 0.0
        for work in mine:
            if work.start - free > unit / 2:
                said.append(f"({(work.start - free) / unit:.0f})")
            free, busy = work.end, busy + work.end - work.start
            second = work.stage >= num_ranks
            prime = _PRIME if second else ""
            said.append(f"{work.kind}{work.microbatch}{prime}")
            x = LEFT + (work.start - begin) / unit * scale
            width = (work.end - work.start) / unit * scale
            opacity = {"F": 0.25, "W": 0.1}.get(work.kind, 0.6)
            style = f"fill:{color};fill-opacity:{opacity};stroke:{color}"
            style += ";stroke-dasharray:3 2" if work.kind == "W" else ""
            size = f'width="{width:.1f}" height="{BOX}"'
            parts.append(f'<rect x="{x:.1f}" y="{y}" {size} style="{style}"/>')
            if second:
                size = f'width="{width:.1f}" height="4"'
                parts.append(f'<rect x="{x:.1f}" y="{y}" {size} fill="currentColor"/>')
            parts.append(
                write(round(x + width / 2, 1), y + 19, str(work.microbatch), size=13)
            )
        share = f"{100 * busy / unit / length:.0f} %"
        parts.append(write(LEFT + 566, y + 18, share, "start", size=13))
        lines.append(f"rank {rank}: {' '.join(said)}; works {share} of the time")
    legend = "faint: forward; strong: backward; blank: idle; right: share at work"
    lines.append("(n) is idle time, in forward passes")
    later = "second stage" if _stages(works) <= 2 * num_ranks else "later stages"
    if any(work.kind == "W" for work in works):
        legend = legend.replace("backward", "backward to the input; dashed: weights")
    if any(work.stage >= num_ranks for work in works):
        lines[-1] += f"; ' marks a rank's {later}"
        legend += f"; bar: {later}"
    y = 44 + num_ranks * ROW
    parts.append(write(LEFT, y, legend, "start", size=12))
    text = "\n".join(lines)
    # On a phone the picture scrolls: shrunk to fit, it would be too small to read.
    svg = document(LEFT + 606, y + 8, text, parts)
    return Picture(svg.replace("max-width:100%", "min-width:34rem"), text)


def _stages(works: Sequence[Work]) -> int:
    """Count the stages of all ranks."""
    return 1 + max(work.stage for work in works)


def recorded(data: Mapping) -> Picture:
    """Draw a schedule that ``make bench`` recorded.

    Args:
        data: ``title``; ``forward_ms``, the length of a forward pass; ``ranks``, the
            work of each rank as ``pack`` writes it, separated by commas.
    """
    works = [
        unpack(rank, text)
        for rank, texts in enumerate(data["ranks"].values())
        for text in texts.split(", ")
    ]
    picture = schedule(data["title"], works, unit=data["forward_ms"])
    return Picture(dense(picture.html), picture.text)


def dense(svg: str) -> str:
    """Write the same SVG in a third of the bytes.

    Boxes that look equal become one path, and the digits of a row one text.
    """
    paths, rows = {}, {}
    for x, y, width, height, look in _BOX.findall(svg):
        paths.setdefault(look, []).append(f"M{x} {y}h{width}v{height}h-{width}z")
    for x, y, look, digit in _DIGIT.findall(svg):
        rows.setdefault((y, look), []).append((x, digit))
    parts = [f'<path d="{"".join(d)}" {look}/>' for look, d in paths.items()]
    parts.sort(key=lambda part: "currentColor" in part)  # bars lie on top of boxes
    for (y, look), digits in rows.items():
        places, text = zip(*digits, strict=True)
        row = f'x="{" ".join(places)}" y="{y}" {look}'
        parts.append(f"<text {row}>{''.join(text)}</text>")
    return _DIGIT.sub("", _BOX.sub("", svg)).replace(
        "</svg>", "".join(parts) + "</svg>"
    )


def pack(work: Work) -> str:
    """Write a piece of work with its times in ms, such as ``F2@5 20.1-40.3``.

    Args:
        work: with its times in seconds.
    """
    times = f"{1e3 * work.start:.1f}-{1e3 * work.end:.1f}"
    return f"{work.kind}{work.microbatch}@{work.stage} {times}"


def unpack(rank: int, text: str) -> Work:
    """Read what ``pack`` wrote, but leave the times in ms.

    >>> unpack(1, "F2@5 20.1-40.3")
    Work(rank=1, kind='F', microbatch=2, stage=5, start=20.1, end=40.3)
    """
    what, _, times = text.partition(" ")
    number, _, stage = what[1:].partition("@")
    start, end = map(float, times.split("-"))
    return Work(rank, what[0], int(number), int(stage), start, end)


def efficiency_plot(data: Mapping) -> Picture:
    """Plot measured efficiencies over the number of micro-batches, beside the law.

    Args:
        data: {"title": …, "num_stages": S, "m1": {"sleep": …, "busy": …}, "m2": …},
            where m1 holds the efficiencies with one micro-batch.
    """
    counts = sorted(int(key[1:]) for key in data if key[0] == "m" and key[1:].isdigit())
    law = [1 - bubble(data["num_stages"], count) for count in counts]
    names = {"sleep": "stages that sleep", "busy": "stages that compute"}
    rows = [
        [count, *(f"{data[f'm{count}'][name]:.2f}" for name in names), f"{value:.2f}"]
        for count, value in zip(counts, law, strict=True)
    ]
    facts = table(["micro-batches", *names.values(), "the law"], rows)
    left, top, width, height = PLOT

    def place(i: int, value: float) -> tuple[float, float]:
        return left + (i + 0.5) * width / len(counts), top + height * (1 - value)

    parts = [write(0, 15, data["title"], "start", bold=True)]
    for tenth in range(0, 11, 2):
        y = place(0, tenth / 10)[1]
        parts.append(
            f'<path d="M{left} {y:g}h{width}" stroke="currentColor" '
            'stroke-opacity="0.2"/>'
        )
        parts.append(write(left - 8, int(y) + 5, f"{tenth * 10} %", "end", size=13))
    for i, count in enumerate(counts):
        parts.append(write(place(i, 0)[0], top + height + 18, str(count), size=13))
    middle = left + width / 2
    parts.append(write(middle, top + height + 36, "micro-batches", size=13))
    points = " ".join("{:.1f},{:.1f}".format(*place(i, v)) for i, v in enumerate(law))
    line = 'fill="none" stroke="currentColor" stroke-dasharray="5 4"'
    parts.append(f'<polyline points="{points}" {line}/>')
    for i, count in enumerate(counts):
        x, y = place(i, data[f"m{count}"]["sleep"])
        parts.append(_dot(x, y))
        x, y = place(i, data[f"m{count}"]["busy"])
        parts.append(_square(x, y))
    y = top + height + 60
    parts += [_dot(left + 6, y - 5), write(left + 18, y, names["sleep"], "start", 13)]
    parts += [_square(left + 156, y - 5)]
    parts.append(write(left + 168, y, names["busy"], "start", 13))
    parts.append(f'<path d="M{left + 320} {y - 5}h30" {line}/>')
    parts.append(write(left + 358, y, "M / (M + S − 1)", "start", 13))
    text = f"{data['title']}\n{facts!r}"
    return Picture(document(left + width + 8, y + 8, text, parts), text)


def _dot(x: float, y: float) -> str:
    style = f"fill:{RANK_COLORS[0]};stroke:currentColor"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" style="{style}"/>'


def _square(x: float, y: float) -> str:
    style = f"fill:{RANK_COLORS[1]};stroke:currentColor"
    place = f'x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"'
    return f'<rect {place} style="{style}"/>'
