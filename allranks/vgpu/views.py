"""Views of what virtual GPUs did and hold: traffic, a timeline, a memory table."""

from collections.abc import Iterable
from dataclasses import replace

from allranks.base.picture import Picture, table
from allranks.base.svg import PHONE, RANK_COLORS, document, either, figure, write
from allranks.vgpu.machine import Device, Event, current

GIB_TO_MIB = 2**20
LEFT, WIDTH, ROW = 72, 640, 40  # of the timeline, in SVG units


def traffic(by_label: bool = False) -> Picture:
    """Count the copies between devices since the last ``clear_events``.

    Args:
        by_label: whether each label has rows of its own, in the order of first copies.

    Returns:
        A table with a row for each pair of source and target: copies, bytes.
    """
    counts: dict = {}
    for way, count in current().copied.items():
        key = way if by_label else way[1:]
        counts[key] = [
            a + b for a, b in zip(counts.get(key, (0, 0)), count, strict=True)
        ]
    ways = counts if by_label else sorted(counts)
    head = ["from", "to", "copies", "bytes"]
    head = ["label", *head] if by_label else head
    return table(head, [[*way, counts[way][0], f"{counts[way][1]:,}"] for way in ways])


def smi() -> str:
    """Write the memory table in the layout of ``nvidia-smi``.

    Memory is what a caching allocator would hold. GPU-Util is the share of the
    estimated time that a device was busy.
    """
    machine = current()
    end = max([machine.host_s, *(device.free_s for device in machine.devices)]) or 1
    rows = [
        (f"{d.index:3}  Virtual GPU", d.reserved, d.capacity, f"{d.busy_s / end:.0%}")
        for d in machine.devices
    ]
    return memory_table(rows, "of the estimated time")


def memory_table(rows: Iterable[tuple[str, int, int, str]], note: str) -> str:
    """Write a row per GPU: its name, bytes in use, bytes in all, and how busy it is.

    The note says what the last of these means.
    """
    rule = "+" + "-" * 32 + "+" + "-" * 22 + "+" + "-" * 16 + "+"
    lines = [
        rule,
        f"| {'GPU  Name':30} | {'Memory-Usage':>20} | {'GPU-Util*':>14} |",
        rule.replace("-", "="),
    ]
    for name, used, total, busy in rows:
        memory = f"{used / GIB_TO_MIB:.1f}MiB / {total / GIB_TO_MIB:.0f}MiB"
        lines.append(f"| {name:30} | {memory:>20} | {busy:>14} |")
    return "\n".join([*lines, rule, f"* {note}"])


def timeline(title: str = "What each device does") -> Picture:
    """Draw the estimated clock, with a row per device and a box per stretch of a label.

    Work has its label's color. A copy is a gray box on both of its devices. Where a
    row is blank, the device is idle.
    """
    machine = current()
    events = sorted(machine.events, key=lambda event: event.start_s)
    begin = min((event.start_s for event in events), default=0.0)
    end = max((event.end_s for event in events), default=0.0)
    span = end - begin or 1.0
    lines = [f"{title} (estimated time, {span * 1e3:.3g} ms)"]
    for device in machine.devices:
        mine = [e for e in _stretches(events, device) if e.source is None]
        said = ", ".join(event.label or "work" for event in mine) or "nothing"
        lines.append(f"{device}  busy {device.busy_s / span:.0%}: {said}")
    legend = f"gray: a copy; blank: idle; {span * 1e3:.3g} ms, estimated"
    if machine.num_events > len(events):
        legend += f"; the last {len(events):,} events of {machine.num_events:,}"
    text = "\n".join(lines)
    wide, narrow = (_lanes(events, begin, span, w, text) for w in (WIDTH, PHONE - LEFT))
    return Picture(figure(title, either(wide, narrow), legend), text)


def _lanes(
    events: list[Event], begin: float, span: float, room: float, label: str
) -> str:
    """Draw a lane per device, and below them what each color stands for."""
    devices, parts = current().devices, []
    colors: dict[str, str] = {}
    for row, device in enumerate(devices):
        y = row * ROW
        busy = f"busy {device.busy_s / span:.0%}"
        parts.append(write(0, y + 12, str(device), "start", size=13))
        parts.append(write(0, y + 27, busy, "start", size=13))
        frame = f'x="{LEFT}" y="{y}" width="{room - 2:g}" height="28"'
        style = 'fill="none" stroke="currentColor" stroke-opacity="0.3"'
        parts.append(f"<rect {frame} {style}/>")
        # A copy is drawn on both of its devices, since both are busy with it.
        for event in _stretches(events, device):
            x = LEFT + (event.start_s - begin) / span * (room - 2)
            # An op of microseconds still gets half a pixel.
            width = max(0.5, (event.end_s - event.start_s) / span * (room - 2))
            place = f'x="{x:.2f}" y="{y}" width="{width:.2f}" height="28"'
            if event.source is not None:
                parts.append(f'<rect {place} fill="currentColor" fill-opacity="0.55"/>')
                continue
            next_color = RANK_COLORS[len(colors) % len(RANK_COLORS)]
            color = colors.setdefault(event.label, next_color)
            style = f"fill:{color};fill-opacity:0.35;stroke:{color}"
            parts.append(f'<rect {place} style="{style}"/>')
            if event.label and width > 8 * len(event.label):
                parts.append(write(x + width / 2, y + 19, event.label, size=12))
    x, y = LEFT, 12 + len(devices) * ROW
    for name, color in colors.items():
        needed = 34 + 8 * len(name or "work")
        # The legend goes on in a new line where the next name would not fit.
        if x > LEFT and x + needed > LEFT + room:
            x, y = LEFT, y + 20
        swatch = f'<rect x="{x}" y="{y - 10}" width="12" height="12"'
        parts.append(f'{swatch} style="fill:{color};fill-opacity:0.35"/>')
        parts.append(write(x + 17, y, name or "work", "start", size=12))
        x += needed
    return document(LEFT + room, y + 8, label, parts, top=-2)


def _stretches(events: list[Event], device: Device) -> list[Event]:
    """Join a device's neighboring events of one label and kind."""
    name, joined = str(device), []
    for event in events:
        if name not in (event.device, event.source, event.target):
            continue
        last = joined[-1] if joined else None
        kind = (event.label, event.source, event.target)
        gap = 0.0 if last is None else event.start_s - last.end_s
        if last and kind == (last.label, last.source, last.target) and gap < 1e-9:
            joined[-1] = replace(last, device=name, end_s=event.end_s, num_bytes=0)
        else:
            joined.append(event)
    return joined
