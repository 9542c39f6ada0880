"""Pictures of pipelines: who works when, and how much of the time is work."""

import re
from collections.abc import Mapping, Sequence

from allranks.base.picture import Picture, table
from allranks.base.svg import (
    PHONE,
    RANK_COLORS,
    WAITING,
    document,
    either,
    figure,
    write,
)
from allranks.topics.pipelines.sums import Work, bubble

LEFT, ROW, BOX = 52, 32, 26  # labels, row to row, box; in SVG units
NARROW_LEFT = 16  # on a phone, where a label is the rank's number
SHARE = 42  # at the right: "100 %"
# How deep a rank's color is, in %, by kind of work. Digits in the page's ink keep a
# contrast of 4.5:1 on each, light and dark.
DEPTH = {"F": 12, "B": 38, "I": 30, "W": 21}
ROOM = 560  # for a schedule in a column
_PRIME = "'"
_SVG = re.compile("<svg.*?</svg>", re.DOTALL)
_BOX = re.compile(r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)" ([^>]*)/>')
_DIGIT = re.compile(r'<text x="(\S+)" y="(\d+)" ([^>]*"middle"[^>]*)>(\d)</text>')


def schedule(title: str, works: Sequence[Work], unit: float = 1.0) -> Picture:
    """Draw who works on which micro-batch when; a red line is a rank that waits.

    A forward pass is a faint box and a backward pass a strong one, each with the number
    of its micro-batch. If backward is split, the weights' part is dashed. A bar on top
    marks the stages of a rank after its first. On a page, where the figure has
    controls, ``draw`` in ``allranks/topics/pipelines/figure.js`` draws the same.

    Args:
        title: stands above the picture.
        works: in any unit of time, from a ``timetable`` or recorded.
        unit: the length of a forward pass.
    """
    num_ranks = 1 + max(work.rank for work in works)
    lines = [title]
    begin = min(work.start for work in works)
    length = (max(work.end for work in works) - begin) / unit
    for rank in range(num_ranks):
        said, free, busy = [], begin, 0.0
        for work in _of(rank, works):
            # Recorded times have small gaps, which are no idle time worth a word.
            if work.start - free > unit / 2:
                said.append(f"({(work.start - free) / unit:.0f})")
            free, busy = work.end, busy + work.end - work.start
            prime = _PRIME if work.stage >= num_ranks else ""
            said.append(f"{work.kind}{work.microbatch}{prime}")
        share = f"{100 * busy / unit / length:.0f} %"
        lines.append(f"rank {rank}: {' '.join(said)}; works {share} of the time")
    legend = "left: rank; digits: micro-batches; faint: forward; strong: backward"
    lines.append("(n) is idle time, in forward passes")
    later = "second stage" if _stages(works) <= 2 * num_ranks else "later stages"
    if any(work.kind == "W" for work in works):
        legend = legend.replace("backward", "backward to the input; dashed: weights")
    if any(work.stage >= num_ranks for work in works):
        lines[-1] += f"; ' marks a rank's {later}"
        legend += f"; bar: {later}"
    legend += "; red: waits; right: share at work"
    text = "\n".join(lines)
    wide = _lanes(works, begin, length, unit, (LEFT, ROOM), text)
    room = PHONE - NARROW_LEFT - SHARE
    narrow = _lanes(works, begin, length, unit, (NARROW_LEFT, room), text)
    return Picture(figure(title, either(wide, narrow), legend), text)


def _of(rank: int, works: Sequence[Work]) -> list[Work]:
    """Return the work of a rank in the order in which it does it."""
    return sorted((w for w in works if w.rank == rank), key=lambda w: w.start)


def _lanes(
    works: Sequence[Work],
    begin: float,
    length: float,
    unit: float,
    columns: tuple[float, float],
    label: str,
) -> str:
    """Draw a lane per rank; a number stands where it fits.

    Args:
        columns: the widths of the labels and, at most, of the lanes.
    """
    num_ranks, parts, (left, room) = 1 + max(work.rank for work in works), [], columns
    scale, wide = min(26.0, room / length), left == LEFT

    # Ends are rounded, and not widths, so that neighbors touch.
    def place(time: float) -> int:
        return round(left + (time - begin) / unit * scale)

    for rank in range(num_ranks):
        y, color = rank * ROW, RANK_COLORS[rank % len(RANK_COLORS)]
        name = f"rank {rank}" if wide else str(rank)
        parts.append(write(0, y + 18, name, "start", size=13))
        mine = _of(rank, works)
        free = [begin, *(work.end for work in mine)]
        busy = [*(work.start for work in mine), begin + length * unit]
        for start, end in zip(free, busy, strict=True):
            # Recorded times have small gaps.
            if (width := place(end) - place(start)) > 2:
                parts.append(_box(place(start), y + 9, width, WAITING, 30, high=8))
        for work in mine:
            x, width = place(work.start), place(work.end) - place(work.start)
            more = f";stroke:{color}" + ";stroke-dasharray:3 2" * (work.kind == "W")
            parts.append(_box(x, y, width, color, DEPTH[work.kind], more))
            if work.stage >= num_ranks:
                size = f'width="{width}" height="4"'
                parts.append(f'<rect x="{x}" y="{y}" {size} fill="currentColor"/>')
            number = str(work.microbatch)
            if 8 * len(number) < width:
                parts.append(
                    write(x + width / 2, y + 18, number, size=12 if wide else 13)
                )
        worked = sum(work.end - work.start for work in mine)
        share = f"{100 * worked / unit / length:.0f} %"
        parts.append(write(left + room + SHARE, y + 18, share, "end", size=13))
    return document(left + room + SHARE, num_ranks * ROW, label, parts, top=-2)


def _box(
    x: int,
    y: int,
    width: int,
    color: str,
    depth: int,
    more: str = "",
    high: int = BOX,
) -> str:
    """Return a box of a lane, filled as deep as its kind of work."""
    size = f'x="{x}" y="{y}" width="{width}" height="{high}"'
    return f'<rect {size} style="fill:{color};fill-opacity:{depth / 100:g}{more}"/>'


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
    html = _SVG.sub(lambda found: dense(found[0]), picture.html)
    return Picture(html, picture.text)


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
    text = f"{data['title']}\n{facts!r}"
    wide, narrow = (
        _plot(data, dict(zip(counts, law, strict=True)), names, width, text)
        for width in (ROOM, PHONE)
    )
    return Picture(figure(data["title"], either(wide, narrow)), text)


def _plot(
    data: Mapping,
    law: Mapping[int, float],
    names: Mapping[str, str],
    width: float,
    label: str,
) -> str:
    """Plot the law as a line, measured efficiencies as marks; name them below."""
    left, height, parts = 52, 230, []
    inner = width - left - 4

    # The counts stand at equal distances, whatever they are.
    def place(i: int, value: float) -> tuple[float, float]:
        return left + (i + 0.5) * inner / len(law), height * (1 - value)

    for tenth in range(0, 11, 2):
        y = place(0, tenth / 10)[1]
        parts.append(
            f'<path d="M{left} {y:g}h{inner:g}" stroke="currentColor" '
            'stroke-opacity="0.2"/>'
        )
        parts.append(write(left - 8, int(y) + 5, f"{tenth * 10} %", "end", size=13))
    for i, count in enumerate(law):
        parts.append(write(place(i, 0)[0], height + 18, str(count), size=13))
    parts.append(write(left + inner / 2, height + 36, "micro-batches", size=13))
    points = " ".join(
        "{:.1f},{:.1f}".format(*place(*at)) for at in enumerate(law.values())
    )
    line = 'fill="none" stroke="currentColor" stroke-dasharray="5 4"'
    parts.append(f'<polyline points="{points}" {line}/>')
    marks = {"sleep": _dot, "busy": _square}
    for name, mark in marks.items():
        for i, count in enumerate(law):
            parts.append(mark(*place(i, data[f"m{count}"][name])))
    y, step = height + 62, (172, 0) if width > PHONE else (0, 22)
    for name, mark in marks.items():
        parts += [mark(left + 8, y - 5), write(left + 22, y, names[name], "start", 13)]
        left, y = left + step[0], y + step[1]
    parts.append(f'<path d="M{left} {y - 5}h18" {line}/>')
    parts.append(write(left + 22, y, "M / (M + R − 1)", "start", 13))
    return document(width, y + 8, label, parts, top=-10)


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="currentColor"/>'


def _square(x: float, y: float) -> str:
    style = "fill:none;stroke:currentColor;stroke-width:2"
    place = f'x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"'
    return f'<rect {place} style="{style}"/>'
