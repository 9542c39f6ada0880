"""Pictures of chapter 12: who holds what, what runs when, and where a step leads."""

import re
from collections.abc import Sequence
from math import sqrt

from allranks.base.picture import Picture
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import (
    Row,
    bars,
    claim,
    dot,
    fill,
    key,
    plate,
    read,
    rule,
    wide,
)

KINDS = {"weights": "strong", "gradients": "faint", "states": "plain"}
SHOWN = "per layer", "one ahead", "kept", "one unit"  # options of FSDP2, to compare
CELL = 30  # px: of a collective, or of a block


def stages(output: str) -> Picture:
    """Draw what each stage holds and sends for each parameter."""
    number = r"([\d.]+) \(([\d.]+)\)"
    names = [*KINDS, "sent"]
    pattern = r"\] (\S+) +" + ", ".join(f"{name} {number}" for name in names)
    found = {}
    for line in read(output, pattern, 4):
        numbers = [float(text) for text in line.groups()[1:]]  # counted, predicted, …
        claim(numbers[::2] == numbers[1::2], "counted as predicted")
        found[line[1]] = dict(zip(names, numbers[::2], strict=True))
    held = {name: sum(one[kind] for kind in KINDS) for name, one in found.items()}
    sent = {name: one["sent"] for name, one in found.items()}
    title = claim(
        sorted(held, key=held.get, reverse=True) == [*held]
        and sent["ZeRO-1"] == sent["ZeRO-2"]
        and sent["ZeRO-3"] > 1.4 * sent["DDP"],
        "Each stage holds less, and only the last one sends more than DDP",
    )
    rows = []
    for name, one in found.items():
        parts = [(one[kind], look) for kind, look in KINDS.items()]
        rows.append(Row(name, parts, f"{held[name]:.1f}, sends {sent[name]:.1f}"))
    most, legend = max(held.values()), [(look, kind) for kind, look in KINDS.items()]
    alt = "Bytes per parameter, on a rank: " + "; ".join(
        f"{row.name} holds {row.said}" for row in rows
    )
    return plate(
        title, alt + ".", lambda width: bars(width, rows, most, 74, 150, legend=legend)
    )


def middle() -> Picture:
    """Draw where the optimizer's step is: after an all_reduce, or in its middle."""
    ways = {"DDP": ("S", "G", "whole"), "ZeRO-1": ("S", "part", "G")}
    said = {"S": "reduce_scatter", "G": "all_gather", "whole": "AdamW", "part": "½"}
    # How long each takes is not measured here: half a step is half as long.
    long_ = {"S": 3.0, "G": 3.0, "whole": 2.0, "part": 1.0}
    carried = {"DDP": "gradients", "ZeRO-1": "weights"}

    def draw(width: int) -> Sheet:
        sheet, y = Sheet(width, 0), 16.0
        left = 62 if wide(sheet) else 0
        unit = (width - left) / sum(long_[part] for part in ways["DDP"])
        for name, parts in ways.items():
            text = f"{name}: the all_gather brings {carried[name]}"
            sheet.words(0, y, text, bold=True)
            y += 10
            for rank in range(2):
                x = left
                if wide(sheet):
                    sheet.words(0, y + 20, f"rank {rank}")
                for part in parts:
                    room = long_[part] * unit - 4
                    look = "travels" if part in "SG" else "strong"
                    fill(sheet, x, y, room, 30, look, rank)
                    text = said[part]
                    if part in "SG":  # no word can be read on hatching
                        size = 8.2 * len(text)
                        sheet.blank(x + (room - size) / 2, y + 5, size, 20)
                    sheet.words(x + room / 2, y + 20, text, "middle")
                    x += room + 4
                y += 36
            y += 26
        sheet.height = y - 30
        return sheet

    alt = "DDP: reduce_scatter, all_gather of gradients, then AdamW for all weights on "
    alt += "each rank. ZeRO-1: reduce_scatter, AdamW for half of the weights on each "
    alt += "of two ranks, then all_gather of weights."
    return plate("An all_reduce has a middle, and ZeRO-1 steps there", alt, draw)


def events(output: str) -> dict[str, list[str]]:
    """Return what runs in a step of FSDP2, by the option's name."""
    pattern = r"\] (\S.*?) +weights .*\n.*\] +([GSAfb\d ]+)$"
    lines = read(output, pattern, len(SHOWN))
    return {line[1]: line[2].split() for line in lines}


def order(output: str) -> Picture:
    """Draw gathers, blocks and reductions in the order in which they run."""
    found = {name: events(output)[name] for name in SHOWN}
    early = found["one ahead"]
    title = claim(
        early.index("f0") > early.index("G")
        and found["one unit"].count("G") == 1
        and found["kept"].count("G") < found["per layer"].count("G"),
        "A unit is gathered before it computes: in forward, and again in backward",
    )

    def row(sheet: Sheet, y: float, some: Sequence[str]) -> None:
        for place, event in enumerate(some):
            x = place * (CELL + 3)
            if event[0] in "fb":
                fill(sheet, x, y, CELL, CELL, "strong" if event[0] == "b" else "plain")
            else:
                fill(sheet, x, y, CELL, CELL, "travels")
                sheet.blank(x + 7, y + 6, CELL - 14, CELL - 12)
            sheet.words(x + CELL / 2, y + 20, event, "middle", bold=event[0] in "GS")

    def draw(width: int) -> Sheet:
        sheet, y = Sheet(width, 0), 44.0
        legend = [("plain", "f: forward"), ("strong", "b: backward")]
        key(sheet, 0, legend)
        fill(sheet, 0, 24, 20, 14, "travels")
        sheet.words(26, 36, "G: all_gather; S: reduce_scatter")
        for name, all_ in found.items():
            y += 22
            sheet.words(0, y, name, bold=True)
            half = len(all_) if wide(sheet) else 10  # a phone has two short rows
            for start in range(0, len(all_), half):
                row(sheet, y + 8, all_[start : start + half])
                y += CELL + 8
        sheet.height = y + 4
        return sheet

    alt = "; ".join(f"{name}: {' '.join(all_)}" for name, all_ in found.items())
    return plate(title, f"What runs in a step, in order. {alt}.", draw)


def timeline(output: str) -> Picture:
    """Draw a recorded step, with gathers in turn, and with gathers ahead."""
    heads = read(output, r"\] (in turn|ahead): forward (\S+), step (\S+), waits (\S+)")
    claim(len(heads) == 2, "both ways are there")
    parts, steps = re.split(r"\] (?:in turn|ahead): ", output)[1:], {}
    unit = r"\] +unit (\d+): (\S+) to (\S+) ms, waits (\S+)"
    for head, part in zip(heads, parts, strict=True):
        numbers = [tuple(map(float, line.groups())) for line in read(part, unit, 3)]
        steps[head[1]] = *map(float, head.groups()[1:]), numbers
    waited = {name: waits for name, (*_, waits, _) in steps.items()}
    title = claim(
        waited["ahead"] < waited["in turn"],
        f"Gathering ahead, the rank waits {waited['ahead']:.0f} ms for weights; "
        f"without it, {waited['in turn']:.0f} ms",
    )
    end = max(step for _, step, *_ in steps.values())

    def draw(width: int) -> Sheet:
        sheet, y = Sheet(width, 0), 0.0
        scale = width / end
        legend = [("plain", "computes"), ("waits", "waits for weights")]
        key(sheet, 0, [*legend, ("travels", "gathers")] if wide(sheet) else legend)
        for name, (forward, step, waits, units) in steps.items():
            y += 42
            said = f"{name}: {step:.0f} ms, of which it waits {waits:.0f} ms"
            sheet.words(0, y, said, bold=True)
            past = 0.0  # a rank computes from here until it waits for the next unit
            for to, late in [*((to, late) for *_, to, late in units), (step, 0)]:
                busy = max(0.0, to - late - past)
                if busy:
                    fill(sheet, past * scale, y + 10, busy * scale, 24, "plain")
                fill(sheet, (to - late) * scale, y + 10, late * scale, 24, "waits")
                past = max(past, to)
            for _, since, to, _ in units:
                fill(sheet, since * scale, y + 40, (to - since) * scale, 20, "travels")
            x = forward * scale
            rule(sheet, f"M{x:.4g} {y + 6:.4g}V{y + 64:.4g}", "5 4", "currentColor")
            sheet.words(x, y + 80, "backward begins", "middle")
            y += 64
        sheet.height = y + 26
        return sheet

    alt = "; ".join(
        f"{name}: a step of {step:g} ms, of which {waits:g} ms are waiting; "
        + ", ".join(
            f"unit {n:.0f} is gathered from {a:g} to {b:g} ms" for n, a, b, _ in units
        )
        for name, (_, step, waits, units) in steps.items()
    )
    return plate(title, f"{alt}.", draw)


def off_course(output: str) -> Picture:
    """Draw where Muon leads on whole matrices, and on parts of them."""
    pattern = r"\] (dealt out|cut) .*steps ([\d.]+) times as long, (\d+)% off course"
    lines = read(output, pattern, 2)
    found = {line[1]: (float(line[2]), int(line[3]) / 100) for line in lines}
    long_, apart = found["cut"]
    title = claim(
        found["dealt out"][1] == 0 and 0.9 < long_ < 1.1 and apart > 0.3,
        "Cut matrices: the weights move as far as they should, but end "
        f"{100 * apart:.0f} % off course",
    )
    # Two sides of a triangle, and what is between their ends.
    cosine = (1 + long_**2 - apart**2) / (2 * long_)

    def draw(width: int) -> Sheet:
        unit = min(width - 40, 340)
        high = long_ * sqrt(1 - cosine**2) * unit
        sheet = Sheet(width, high + 78)
        base = high + 40
        sheet.arrow(
            f"0,{base:.4g} {unit:.4g},{base:.4g}", color="currentColor", thick=4
        )
        sheet.words(unit / 2, base + 24, "one process, and whole matrices", "middle")
        x, y = long_ * cosine * unit, base - high
        sheet.arrow(f"0,{base:.4g} {x:.4g},{y:.4g}", color="currentColor", thick=4)
        rule(sheet, f"M{x:.4g} {y:.4g}L{unit:.4g} {base:.4g}", "5 4")
        sheet.wrong(max(x, 80), y - 14, "parts of matrices", "middle")
        dot(sheet, 0, base)
        return sheet

    alt = f"On parts of matrices, weights move {long_:g} times as far as in one "
    alt += f"process, and end {100 * apart:.0f} % of this distance off course."
    return plate(title, alt, draw)


def legs(output: str) -> Picture:
    """Draw one training that goes on with other numbers of ranks."""
    lines = read(output, r"\] (\d+) ranks: step (\d+), (\d+) files", 3)
    gap = read(output, r"one process: \d+ tensors (\S+) off; same .*: (True|False)")[0]
    sizes = [(int(line[1]), int(line[2])) for line in lines]
    title = claim(
        float(gap[1]) < 1e-12 and gap[2] == "True" and len({*sizes}) > 2,
        f"{' → '.join(str(num) for num, _ in sizes)} ranks train as one process does",
    )

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 0)
        left = 86 if wide(sheet) else 62
        room = width - left
        for place, (num, step) in enumerate(sizes):
            y = 8 + 56 * place
            sheet.words(0, y + 20, f"step {step}")
            for rank in range(num):  # each has 1/num of what there is, so 1/num wide
                x = left + room * rank / num
                name = f"rank {rank}" if wide(sheet) else f"{rank}"
                sheet.box(x, y, room / num - 4, 30, name, rank=rank, strong=0.3)
            if place:
                middle = left + room / 2
                sheet.arrow(f"{middle:.4g},{y - 24} {middle:.4g},{y - 3}")
        sheet.height = 56 * len(sizes) - 10
        return sheet

    alt = ", then ".join(f"{num} ranks up to step {step}" for num, step in sizes)
    return plate(title, f"Bars that are cut among ranks: {alt}.", draw)


def moved(output: str) -> Picture:
    """Draw what each older way sends, and FSDP2 in its place."""
    pattern = r"\] (\S.*?) +(\S+) off, sends (\d+) B; now (\S+) off, sends (\d+) B"
    lines = read(output, pattern, 4)
    claim(
        all(float(line[n]) < 1e-6 for line in lines for n in (2, 4)),
        "all train what one process does",
    )
    sent = {line[1]: (int(line[3]), int(line[5])) for line in lines}
    title = claim(
        sent["FULL_SHARD"][0] == sent["FULL_SHARD"][1]
        and sent["ZeroRedundancyOptimizer"][0] > sent["ZeroRedundancyOptimizer"][1],
        "FSDP2 sends what FSDP1 sends, and less than ZeroRedundancyOptimizer",
    )
    rows, most = [], max(max(both) for both in sent.values())
    for name, both in sent.items():
        for num, look, label in zip(both, ("faint", "strong"), (name, ""), strict=True):
            rows.append(Row(label, [(num, look)], f"{num} B"))
    legend = [("faint", "the old way"), ("strong", "FSDP2")]
    alt = "Bytes that a rank sends in a step: " + "; ".join(
        f"{name}: {a}, now {b}" for name, (a, b) in sent.items()
    )
    return plate(
        title, f"{alt}.", lambda width: bars(width, rows, most, 220, 90, legend=legend)
    )


def cases(output: str) -> Picture:
    """Draw what each net sends, and which goes wrong, or is refused."""
    pattern = r"\] (\S.*?) +(?:(\S+) off, sends (\d+) B|Parameter .*)$"
    lines = read(output, pattern, 6)
    rows, wrong = [], []
    for name, off, sent in (line.groups() for line in lines):
        bad = off is not None and float(off) > 1e-6
        wrong += [name] * bad
        told = f"{sent} B, but wrong" if bad else f"{sent} B" if sent else "refused"
        rows.append(Row(name, [(int(sent or 0), "wrong" if bad else "plain")], told))
    refused = [row.name for row in rows if row.said == "refused"]
    title = claim(
        wrong == ["scale ignored"] and refused == ["tied, in two units"],
        "One net is refused, and one goes wrong without a word",
    )
    most = max(row.parts[0][0] for row in rows)
    alt = "Bytes that a rank sends in a step: " + "; ".join(
        f"{row.name}: {row.said}" for row in rows
    )
    return plate(title, f"{alt}.", lambda width: bars(width, rows, most, 190, 150))
