"""The picture of a cell: what each rank did, and what it waited for.

A rank has a lane. Its own work is a strong bar, waiting in a collective a red one.
Where the lane is blank, the rank has finished while others still run. Calls too short
to be drawn one by one become bars whose strong part is as high as the share of work in
them. Places on the time axis are shares of the width, so that on a phone the picture
shrinks and its letters don't.
"""

from collections.abc import Iterable, Mapping
from html import escape
from typing import NamedTuple

from allranks.base.picture import Picture, table
from allranks.base.svg import RANK_COLORS, WAITS, write
from allranks.topics.timelines.sums import Job, Span, place, show_time, ticks

LEFT, RIGHT = 58, 14  # px beside the lanes: the ranks' names, half a tick's label
NARROW, WIDE = 270, 620  # px that a lane has on a phone, and on a page
MOST_BARS = 1000  # of all lanes; with more, the SVG would weigh too much
FEW = 12  # ranks whose figures stand open below the picture
_STYLE = (
    f"<style>.lanes .red{{{WAITS}}}"
    "@container (max-width:600px){.lanes .wide{display:none}}"
    ".lanes td:not(:last-child){white-space:nowrap}</style>"
)


class Bar(NamedTuple):
    """A piece of a lane.

    Attributes:
        start, end: in s; a call too short to be seen is made longer.
        share: how much of it the rank worked: 1 work, 0 waiting, else some of both.
        label: what may stand in it; "" for the rank's own work.
        title: what it is and when it was, in words.
    """

    start: float
    end: float
    share: float
    label: str
    title: str


def timeline(jobs: Mapping[int, Job], cell: str = "") -> Picture:
    """Draw what each rank did in a cell, and what it waited for.

    Args:
        jobs: what the clock of each rank has recorded, by rank.
        cell: the file name under which the cell was compiled.
    Raises:
        ValueError: if there is no rank.
    """
    if not jobs:
        raise ValueError("no rank: nothing to draw")
    begin = min(job.start for job in jobs.values())
    length = max(max(job.end for job in jobs.values()) - begin, 1e-6)
    facts = summary(jobs, cell)
    lanes, finest = {}, 1 / 700  # of the length: what is shorter is merged
    while not lanes or (sum(map(len, lanes.values())) > MOST_BARS and finest < 0.2):
        lanes = {r: bars(jobs[r], cell, begin, finest * length) for r in sorted(jobs)}
        finest *= 1.5
    head = _headline(jobs, length)
    row, height = (40, 30) if len(lanes) <= 8 else (24, 18)
    row, height = (row, height) if len(lanes) <= 24 else (15, 11)
    size = 13 if height >= 18 else 11
    parts, top = [], 8
    for i, (rank, lane) in enumerate(lanes.items()):
        y, color = top + i * row, RANK_COLORS[rank % len(RANK_COLORS)]
        name = write(-LEFT, y + (height + size) // 2 - 2, f"rank {rank}", "start", size)
        base = f'<rect y="{y + height}" width="100%" height="1" fill-opacity="0.25"/>'
        drawn = _draw(lane, begin, length, y, height, len(lanes) <= 24)
        style = f"fill:{color};stroke:{color}"
        parts.append(f'{name}<g fill="currentColor">{base}</g>')
        parts.append(f'<g style="{style}" stroke-width="0">{drawn}</g>')
        parts.append(_labels(lane, begin, length, y, height))
    bottom = top + len(lanes) * row
    parts += _axis(length, bottom)
    total = bottom + 38
    parts.append(_legend(total - 6))
    text = f"{head}\n{facts!r}"
    label = escape("; ".join(" ".join(line.split()) for line in text.splitlines()))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{total}" '
        f'role="img" font-family="system-ui, sans-serif" aria-label="{label}" '
        f'style="width:calc(100% - {LEFT + RIGHT}px);margin:0 {RIGHT}px 8px {LEFT}px;'
        f'overflow:visible;display:block">{"".join(parts)}</svg>'
    )
    below = facts.html
    if len(jobs) > FEW:
        below = f"<details><summary>each rank's figures</summary>{below}</details>"
    style = "container-type:inline-size;max-width:800px"
    html = f"<p><b>{escape(head)}</b></p>{svg}{below}"
    return Picture(f'<div class="lanes" style="{style}">{_STYLE}{html}</div>', text)


def summary(jobs: Mapping[int, Job], cell: str = "") -> Picture:
    """Say for each rank how long it worked and waited, and in which call most.

    Args:
        jobs: as for ``timeline``.
        cell: as for ``timeline``.
    """
    rows = []
    for rank, job in sorted(jobs.items()):
        most, where = job.most(), "–"
        if most is not None:
            span, number, waited = most
            times = f" × {number}" if number > 1 else ""
            at = place(span, cell)
            where = f"{span.name}{times}{', ' if at else ''}{at}: {show_time(waited)}"
        rows.append([f"{rank}", show_time(job.worked), show_time(job.waited), where])
    dropped = sum(job.dropped for job in jobs.values())
    found = table(["rank", "worked", "waited", "most of it in"], rows)
    if not dropped:
        return found
    more = f"{dropped} more calls are counted, but not drawn one by one."
    return Picture(f"{found.html}<p>{more}</p>", f"{found!r}\n{more}")


def bars(job: Job, cell: str, begin: float, finest: float) -> list[Bar]:
    """Cut a rank's lane into bars of work and of waiting.

    Calls that are shorter than ``finest``, and no farther apart than that, become one
    bar, of which the share is right.

    Args:
        job: what the rank's clock has recorded.
        cell: the file name under which the cell was compiled.
        begin: when the first rank began, in s.
        finest: in s.
    """
    found: list[Bar] = []
    free = job.start  # where the last bar ended

    def when(start: float, end: float) -> str:
        times = f"{show_time(start - begin)} to {show_time(end - begin)}"
        return f"{times}, {show_time(end - start)}"

    def work(until: float) -> None:
        if until > free:
            found.append(Bar(free, until, 1, "", f"own work: {when(free, until)}"))

    for group in _groups(job.spans, finest):
        span, last = group[0], group[-1]
        start, end = max(span.start, free), min(last.end, job.end)
        end = min(max(end, start + finest), job.end)
        waited, whole = sum(s.waited for s in group), last.end - span.start
        if len(group) > 1 and 0 <= span.start - free < finest:
            start, whole = free, last.end - free  # no sliver of work before it
        work(start)
        if len(group) > 1:
            names = list(dict.fromkeys(s.name for s in group))
            label = names[0] if len(names) == 1 else "short calls"
            title = f"{len(group)} calls of {', '.join(names[:3])}"
            title += f"{', …' if len(names) > 3 else ''}: {when(span.start, last.end)}"
            title += f", of which {show_time(waited)} waiting"
            share = max(0, 1 - waited / max(whole, waited, 1e-12))
            found.append(Bar(start, end, share, label, title))
        else:
            at = place(span, cell)
            title = f"{span.name}{' at ' if at else ''}{at}: {when(*span[1:3])}"
            turn = start  # from here on it waits
            if waited < whole:
                title += f", of which {show_time(waited)} waiting at its end"
                turn = end - waited / whole * (end - start)
                found.append(Bar(start, turn, 1, span.name, title))
            if turn < end:
                found.append(Bar(turn, end, 0, span.name, title))
        free = end
    if job.dropped and job.end > free:
        share = max(0, 1 - job.dropped_s / (job.end - free))
        title = f"{job.dropped} more calls: {when(free, job.end)}"
        title += f", of which {show_time(job.dropped_s)} waiting"
        found.append(Bar(free, job.end, share, "more calls", title))
        return found
    work(job.end)
    return found


def _groups(spans: Iterable[Span], finest: float) -> list[list[Span]]:
    """Put spans together that are too short and too close to be drawn one by one."""
    groups: list[list[Span]] = []
    for span in spans:
        if groups and span.end - span.start < finest:
            first, last = groups[-1][0], groups[-1][-1]
            near = last.end - last.start < finest and span.start - last.end < finest
            # A group ends at times, so that its share can change along the lane.
            if near and span.end - first.start < 6 * finest:
                groups[-1].append(span)
                continue
        groups.append([span])
    return groups


def _headline(jobs: Mapping[int, Job], length: float) -> str:
    """Say how long it took, what part of that was waiting, and who was slow."""
    waited = sum(job.waited for job in jobs.values())
    spent = sum(job.end - job.start for job in jobs.values())
    ranks = f"{len(jobs)} ranks" if len(jobs) > 1 else f"rank {next(iter(jobs))}"
    text = f"{show_time(length)} on {ranks}, "
    text += f"{100 * waited / spent:.0f} % of it waiting" if waited else "no waiting"
    worked = {rank: job.worked for rank, job in jobs.items()}
    rank = max(worked, key=worked.get)
    if waited and worked[rank] - min(worked.values()) > 0.1 * length:
        text += f"; rank {rank} worked longest, {show_time(worked[rank])}"
    return text


def _draw(
    lane: list[Bar], begin: float, length: float, y: int, height: int, named: bool
) -> str:
    """Draw the bars of a lane; the group around them has the color."""
    parts = []
    for bar in lane:
        x = 100 * (bar.start - begin) / length
        width = 100 * (bar.end - bar.start) / length
        place = f'x="{x:.2f}%" width="{max(width, 0.1):.2f}%"'
        title = f"<title>{escape(bar.title)}</title>" if named or width > 1 else ""
        solid, red, strong = round(height * bar.share), "", ""
        if solid < height:
            edge = ' stroke-width="1"' if width > 2 and not bar.share else ""
            box = f'y="{y}" height="{height - solid}" class="red"{edge}'
            red = f"<rect {place} {box}/>"
        if solid:
            box = f'y="{y + height - solid}" height="{solid}" fill-opacity="0.65"'
            strong = f"<rect {place} {box}/>"
        parts.append(f"<g>{title}{red}{strong}</g>")
    return "".join(parts)


def _labels(lane: list[Bar], begin: float, length: float, y: int, height: int) -> str:
    """Write what the bars are, where they are wide enough for it."""
    parts, runs = [], []
    for bar in lane if height >= 18 else ():
        mixed = 0 < bar.share < 1
        if runs and mixed and runs[-1][2] and runs[-1][3] == bar.label:
            runs[-1][1] = bar.end  # one label for all of them
        else:
            where = height // 2 + 4
            if mixed and height > 26:  # beside the edge of what is strong
                where = height - 4 if bar.share > 0.5 else 13
            runs.append([bar.start, bar.end, mixed, bar.label, where])
    for start, end, _, label, below in runs:
        needed, share = 7.3 * len(label) + 6, (end - start) / length
        if label and needed <= share * WIDE:
            wide = "" if needed <= share * NARROW else ' class="wide"'
            x = 100 * ((start + end) / 2 - begin) / length
            where = f'x="{x:.2f}%" y="{y + below}"{wide}'
            parts.append(f"<text {where}>{escape(label)}</text>")
    look = 'fill="currentColor" font-size="13" text-anchor="middle"'
    return f'<g {look} pointer-events="none">{"".join(parts)}</g>' if parts else ""


def _axis(length: float, y: int) -> list[str]:
    """Draw the time axis, which begins at 0, under the lanes."""
    marks, parts = ticks(length) if length > 1e-6 else [0.0], []
    unit, factor = ("s", 1) if length >= 1 else ("ms", 1e3)
    for i, mark in enumerate(marks):
        x = f"{100 * mark / length:.2f}%"
        text = f"{mark * factor:.12g}" + (f" {unit}" if i == len(marks) - 1 else "")
        parts.append(f'<rect x="{x}" y="{y}" width="1" height="5"/>')
        side = ' text-anchor="end"' if mark > 0.97 * length else ""
        parts.append(f'<text x="{x}" y="{y + 17}"{side}>{text}</text>')
    look = 'fill="currentColor" font-size="12" text-anchor="middle"'
    return [f"<g {look}>{''.join(parts)}</g>"]


def _legend(y: int) -> str:
    """Say what strong, red and blank stand for."""
    text = "strong: works; red: waits; blank: not running"
    return write(-LEFT, y, text, "start", 12)
