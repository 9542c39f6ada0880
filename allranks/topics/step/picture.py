"""The wall chart: per rank a tank, a lane of time, and a row of what goes to whom.

A script on the page moves the playhead: it finds the tanks' parts by ``data-kind``, the
line by ``data-line`` and the cells by ``data-cell``, and it takes heights and places
from ``facts``.
"""

import json
import re
from collections.abc import Iterator
from html import escape
from textwrap import wrap
from typing import Any, NamedTuple

from allranks.base.svg import LIGHT, RANK_COLORS, WAITS, write
from allranks.base.units import amount
from allranks.topics.step.sums import KINDS, LAYOUTS, Step, step

WORLD_SIZE, BATCH_SIZE = 4, 4
FULL = 6e9  # bytes of a full tank: one scale for all layouts
# What is stored has a depth; only what travels is hatched.
DEPTHS = dict(zip(KINDS, (0.75, 0.55, 0.38, 0.24, 0.1), strict=True))
WORK = {"forward": 0.15, "backward": 0.34, "step": 0.75}


class Room(NamedTuple):
    """Where things are, in SVG units: of a page, of a phone, of a sheet of paper."""

    width: int
    tank: int  # its left edge
    tank_width: int
    lane: int
    cells: int
    cell: int
    row: int
    size: int  # of letters
    rows: int = WORLD_SIZE
    hatch: str = "hatch"  # ids are unique on a page

    @property
    def lane_width(self) -> int:
        """Return how long a step is."""
        return self.cells - self.lane - 22

    @property
    def height(self) -> int:
        """Return where the lowest row ends."""
        return 44 + self.rows * self.row + 26


WIDE = Room(760, 58, 46, 118, 640, 29, 78, 14)
PHONE = Room(324, 0, 36, 46, 258, 16, 92, 13)


def chart(layout: str, room: Room, longest: float) -> str:
    """Return the parts of a chart, as SVG in the page's colors.

    Args:
        layout: a key of ``sums.LAYOUTS``.
        longest: seconds that the lanes' whole length stands for.
    """
    found = step(layout, WORLD_SIZE, BATCH_SIZE)
    used = WORLD_SIZE if len(found.sent) > 1 else 1
    heads = [(room.tank, "holds"), (room.lane, "does")]
    heads += [(room.cells, "sends to" if room.tank else "to rank")] * (used > 1)
    parts = [write(x, 14, words, "start", room.size, bold=True) for x, words in heads]
    for rank in range(room.rows):
        place = room.cells + (rank + 0.5) * room.cell
        if used > 1:
            parts.append(write(place, 34, str(rank), size=room.size - 1))
        parts += _row(rank, found if rank < used else None, room, longest)
    # Without a script the playhead stands where a rank holds most.
    line, bottom = found.peak[0] / longest * room.lane_width, room.height - 22
    parts.append(
        f'<g data-line="{room.lane_width}" transform="translate({line:.1f} 0)">'
        f'<path d="M{room.lane} 28V{bottom}" stroke="currentColor" stroke-width="2"/>'
        f'<circle class="wall-knob" cx="{room.lane}" cy="28"/></g>'
    )
    for share in (0, 0.5, 1):
        place, time = room.lane + share * room.lane_width, share * longest
        words = amount(time, "s") if share else "0"
        side = {0: "start", 0.5: "middle", 1: "end"}[share]
        parts.append(write(place, room.height - 6, words, side, room.size - 1))
    return "".join(parts)


def _row(rank: int, found: Step | None, room: Room, longest: float) -> Iterator[str]:
    """Draw a rank, or that it is not used."""
    top, color = 40 + rank * room.row, RANK_COLORS[rank]
    high = room.row - (30 if room.tank == 0 else 12)
    top += room.row - 12 - high  # on a phone, the name stands above
    beside = room.tank > 0
    name = top + high / 2 + 5 if beside else top - 5
    yield write(0, round(name), f"rank {rank}", "start", room.size, bold=True)
    frame = 'fill="none" stroke="currentColor" stroke-opacity="0.4"'
    if found is None:
        wide = room.cells - 22 - room.tank
        yield (
            f'<rect x="{room.tank}" y="{top}" width="{wide}" height="{high}" {frame} '
            'stroke-dasharray="4 4"/>'
        )
        middle = room.tank + wide / 2
        yield write(middle, round(top + high / 2 + 5), "not used", size=room.size)
        return
    floor = top + high
    for kind, num in zip(KINDS, found.peak[1], strict=True):
        tall = num / FULL * high
        floor -= tall
        yield (
            f'<rect data-kind="{kind}" data-floor="{top + high}" data-high="{high}" '
            f'x="{room.tank}" y="{floor:.1f}" width="{room.tank_width}" '
            f'height="{tall:.1f}" style="{_look(kind, color)}"/>'
        )
    yield (
        f'<rect x="{room.tank}" y="{top}" width="{room.tank_width}" height="{high}" '
        f"{frame}/>"
    )
    yield from _lane(rank, found, room, longest, top, high)
    for other, sent in enumerate(found.sent if len(found.sent) > 1 else ()):
        # found.sent is rank 0's; the others send as much to those after them.
        place = room.cells + (rank + other) % WORLD_SIZE * room.cell
        size = min(room.cell, high) - 4
        y = top + (high - size) / 2
        box = f'x="{place + 2}" y="{y:.1f}" width="{size}"'
        yield f'<rect {box} height="{size}" {frame}/>'
        if sent:
            yield (
                f'<rect data-cell="{y + size:.1f}" data-size="{size}" {box} '
                f'height="{size}" '
                f'style="fill:url(#{room.hatch}{rank});stroke:{color}"/>'
            )


def _look(kind: str, color: str) -> str:
    """Return the style of a kind of memory: a depth of the rank's hue, with an edge."""
    return f"fill:{color};fill-opacity:{DEPTHS[kind]};stroke:{color};stroke-opacity:0.6"


def _lane(
    rank: int, found: Step, room: Room, longest: float, top: int, high: int
) -> Iterator[str]:
    """Draw what a rank computes, and below it what it sends meanwhile."""
    color, scale = RANK_COLORS[rank], room.lane_width / longest
    above = round(high * 0.6)
    middle, foot = round(top + above / 2 + 5), top + above
    words = [("wait", "waits")] + [(kind, kind) for kind in ("forward", "backward")]
    for kind, name, start, end in found.spans:
        x, wide = room.lane + start * scale, (end - start) * scale
        box = f'x="{x:.1f}" width="{wide:.1f}"'
        title = f"<title>{escape(name)}: {kind}, {amount(end - start, 's')}</title>"
        if kind == "wait":
            box += f' y="{top}" height="{above}" style="{WAITS}"'
        elif kind == "send":
            style = f"fill:url(#{room.hatch}{rank});stroke:{color}"
            below = high - above - 5
            box += f' y="{foot + 5}" height="{below}" style="{style}"'
        else:
            style = f"fill:{color};fill-opacity:{WORK[kind]}"
            box += f' y="{top}" height="{above}" style="{style}"'
        yield f"<rect {box}>{title}</rect>"
        if kind in WORK:  # a tick below the words, so that no line strikes them through
            yield f'<path d="M{x:.1f} {foot - 8}v8" style="stroke:{color}"/>'
        if kind == "step":  # beside its narrow box, read from above
            word = write(0, 0, name, "start", room.size - 1)
            yield f'<g transform="translate({x + wide + 5:.1f} {top}) rotate(90)">'
            yield f"{word}</g>"
    for kind, word in words:
        spans = [span for span in found.spans if span.kind == kind]
        if spans and (spans[-1].end - spans[0].start) * scale > 2.7 * room.size:
            x = (spans[0].start + spans[-1].end) / 2 * scale + room.lane
            yield write(x, middle, word, size=room.size - 1)


def hatches(name: str) -> str:
    """Return the patterns of what travels, one for each rank."""
    return "<defs>{}</defs>".format(
        "".join(
            f'<pattern id="{name}{rank}" width="6" height="6" '
            'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            f'<path d="M0 3H6" style="stroke:{color};stroke-width:2.5"/></pattern>'
            for rank, color in enumerate(RANK_COLORS[:WORLD_SIZE])
        )
    )


def facts(layout: str) -> dict[str, Any]:
    """Return what the page's script needs to move the playhead.

    Returns:
        ``seconds``; ``moments``: [time in s, [bytes of each kind], what has just been
        done]; ``sends``: [start, end] of each bucket, weighed by its length; ``words``:
        what to say of the step as a whole.
    """
    found = step(layout, WORLD_SIZE, BATCH_SIZE)
    done = [s for s in found.spans if s.kind in WORK]
    names = ["the step begins", *(f"{s.kind}: {s.name}" for s in done)]
    moments = [
        [round(time, 7), held, name]
        for (time, held), name in zip(found.moments, names, strict=True)
    ]
    sends = [[s.start, s.end] for s in found.spans if s.kind == "send"]
    return {
        "seconds": found.seconds,
        "moments": moments,
        "sends": sends,
        "words": words(layout),
    }


def words(layout: str) -> str:
    """Say in a few sentences what the chart shows."""
    found, alone = step(layout, WORLD_SIZE, BATCH_SIZE), step("single", 1, BATCH_SIZE)
    time, held = found.peak
    used = WORLD_SIZE if len(found.sent) > 1 else 1
    text = (
        f"{LAYOUTS[layout]}: a step takes {amount(found.seconds, 's')}. Memory peaks "
        f"at {amount(sum(held), 'B')} after {amount(time, 's')}; "
        f"{amount(held[-1], 'B')} of that are activations."
    )
    if used == 1:
        return text
    faster = used * alone.seconds / found.seconds
    return (
        f"{text} Each rank sends {amount(sum(found.sent), 'B')} to the next and waits "
        f"{amount(found.waits, 's')}. {used} ranks train {faster:.1f} times as many "
        "samples per second as one GPU."
    )


def longest() -> float:
    """Return how many seconds a lane has: those of the slowest layout."""
    return max(step(name, WORLD_SIZE, BATCH_SIZE).seconds for name in LAYOUTS)


def page_figure() -> str:
    """Return all charts as HTML, of which the page's script makes tabs."""
    data = json.dumps(
        {"full": FULL, "longest": longest(), "kinds": KINDS}
        | {"layouts": {name: facts(name) for name in LAYOUTS}},
        separators=(",", ":"),
    )
    legend = "".join(
        f'<span><i style="--deep:{depth:.0%}"></i>{kind}</span>'
        for kind, depth in DEPTHS.items()
    )
    legend = (
        f'<p class="wall-legend">A tank, from the bottom up: {legend} '
        f"A full one holds {amount(FULL, 'B')}. Hatched: gradients on their way. "
        "Red: the rank waits.</p>"
    )
    panels = "".join(
        f'<div class="wall-panel" data-layout="{name}"><p><b>{title}</b></p>'
        f"{_svg(name, WIDE, 'wall-wide')}{_svg(name, PHONE, 'wall-narrow no-paper')}"
        f"{legend}<p>{escape(words(name))}</p></div>"
        for name, title in LAYOUTS.items()
    )
    return f'<figure class="wall-chart" data-facts="{escape(data)}">{panels}</figure>'


def _svg(layout: str, room: Room, look: str) -> str:
    label, room = escape(words(layout)), room._replace(hatch=f"{look[:9]}-{layout}")
    parts = hatches(room.hatch) + chart(layout, room, longest())
    return (
        f'<svg class="{look}" viewBox="0 0 {room.width} {room.height}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" '
        f'aria-label="{label}">{parts}</svg>'
    )


def sheet() -> str:
    """Return the chart for a sheet of A2, which needs nothing of the page."""
    model = (
        "GPT-2, 124 million parameters, float32, Adam. 4 samples of 1,024 tokens per "
        "GPU. Each GPU: 60 TFLOP/s, 2 TB/s of memory, 25 GB/s to the next one."
    )
    parts = [
        write(70, 90, f"One training step on {WORLD_SIZE} GPUs", "start", 44, True)
    ]
    parts += [write(70, 126, model, "start", 18), hatches("hatch")]
    top = 160
    for name, title in LAYOUTS.items():
        rows = 1 if name == "single" else WORLD_SIZE
        room = Room(1540, 110, 110, 260, 1290, 60, 128, 18, rows)
        drawn = chart(name, room, longest())
        parts.append(write(70, top + 10, title, "start", 26, bold=True))
        parts.append(f'<g transform="translate(70 {top + 28})">{drawn}</g>')
        top += room.height + 62
        for line in wrap(words(name), 140):  # as wide as the paper in any font
            parts.append(write(70, top - 4, line, "start", 17))
            top += 22
        top += 18
    x, top = 70, top + 4
    for kind in DEPTHS:
        style = _look(kind, "currentColor")
        box = f'x="{x}" y="{top - 16}" width="28" height="20"'
        parts.append(f'<rect {box} style="{style}"/>')
        parts.append(write(x + 38, top, kind, "start", 17))
        x += 80 + 10 * len(kind)
    more = f"A full tank holds {amount(FULL, 'B')}. Hatched: on its way. Red: waits."
    parts.append(write(x, top, more, "start", 17))
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="594mm" height="420mm" '
        'viewBox="0 0 1684 1190" font-family="system-ui, sans-serif" color="#1d2430">'
        f'<rect width="1684" height="1190" fill="#fff"/>{"".join(parts)}</svg>'
    )
    # Printers and drawing programs know no variables of a page.
    for rank, color in enumerate(LIGHT):
        svg = re.sub(rf"var\(--rank-{rank}, [^)]*\)", color, svg)
    return re.sub(r"var\(--[\w-]+, ([^)]*)\)", r"\1", svg)
