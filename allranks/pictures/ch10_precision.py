"""Pictures of chapter 10: rounding, loss scales, sums, clipping, larger batches."""

import re
import struct
from collections.abc import Mapping
from math import log2, log10

from allranks.base.picture import Picture
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import (
    BAR,
    FEW,
    Axis,
    Plot,
    Row,
    bars,
    claim,
    dot,
    fill,
    in_two,
    linear,
    percent,
    plate,
    read,
    rule,
    stick,
    wide,
)

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
ROUNDING = 1e-6  # relative errors below this are rounding


def power(exponent: int, base: int = 10) -> str:
    """Write a power.

    >>> power(-7), power(24, 2)
    ('10⁻⁷', '2²⁴')
    """
    return f"{base}{str(exponent).translate(RAISED)}"


def cures(output: str) -> Picture:
    """Draw the loss and the weights that stand still, for each way to keep weights."""
    pattern = r"\] (\S.*?) +test loss ([\d.]+), +(\d+)% of the weights stand still"
    lines = read(output, pattern, 5)
    loss = {line[1]: float(line[2]) for line in lines}
    still = {line[1]: int(line[3]) for line in lines}
    names = list(loss)
    exact, alone, cured = loss[names[0]], loss[names[1]], names[2:]
    title = claim(
        alone - exact > 0.05 and all(abs(loss[n] - exact) < 0.02 for n in cured),
        "bf16 alone ends with a higher loss; with each cure, it ends where float32 "
        "does",
    )
    low, high = min(loss.values()), max(loss.values())
    # Losses differ in the second decimal: an axis from 0 would hide it.
    span = high - low or 1

    def row(sheet: Sheet, name: str, y: float, left: float, half: float) -> None:
        x = left + 8 + (half - 90) * (loss[name] - low) / span
        stick(sheet, left + 8, x, y, f"{loss[name]:.3f}")
        long_ = (half - 60) * still[name] / 100
        if long_:
            fill(sheet, left + half, y, long_, BAR, "plain")
        sheet.words(left + half + long_ + 8, y + 17, f"{still[name]} %", bold=True)

    draw = in_two(names, ("test loss", "stand still, per step"), 150, row)
    said = "; ".join(
        f"{n}: loss {loss[n]:.3f}, {still[n]} % stand still" for n in names
    )
    return plate(title, f"Final loss, and weights that do not move. {said}.", draw)


def loss_scale(output: str) -> Picture:
    """Draw a loss scale over the steps: halved at an overflow, else doubled."""
    text = read(output, r"scales: (.+)$")[0][1]
    runs = [(int(e), int(n)) for e, n in re.findall(r"2\^(\d+) x (\d+)", text)]
    if len(runs) < 3 or len(runs) != text.count(",") + 1:
        raise ValueError(f"scales: {text} is no list such as 2^24 x 1, 2^23 x 20")
    after = [b[0] for b in runs[1:]]
    # A scale is below the one before it only after an overflow.
    skipped = [b < a for (a, _), b in zip(runs, after, strict=False)]
    num = sum(skipped)
    grown = next(n for (_, n), low in zip(runs, skipped, strict=False) if not low)
    title = claim(
        all(skipped[:num]) and not any(skipped[num:]),
        f"The first {num} scales overflow; then the scale doubles every {grown} steps",
    )
    low, high = min(e for e, _ in runs), max(e for e, _ in runs)
    total = sum(n for _, n in runs)

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 262)
        steps = linear(range(0, total + 1, 20), "step")
        share = lambda e: (e - low + 0.5) / (high - low + 1)  # noqa: E731
        scale = Axis(
            [(e, power(e, 2)) for e in range(low, high + 1)], share, "loss scale"
        )
        plot = Plot(sheet, steps, scale, 180, right=16, left=40)
        path, at = "", 0
        for exponent, length in runs:
            x, y = plot.at(at, exponent)
            end = plot.at(at + length, exponent)[0]
            path += f"{'L' if path else 'M'}{x:.4g} {y:.4g}L{end:.4g} {y:.4g}"
            at += length
        rule(sheet, path, color="currentColor", thick=2.5)
        at = 0
        for (exponent, length), low_ in zip(runs, skipped, strict=False):
            if low_:
                x, y = plot.at(at + length / 2, exponent)
                fill(sheet, x - 5, y - 5, 10, 10, "wrong")
            at += length
        x, y = plot.at(6, high)
        sheet.wrong(x, y + 6, f"{num} overflows: skipped")
        return sheet

    said = ", ".join(f"{power(e, 2)} for {n} step{'s' * (n > 1)}" for e, n in runs)
    return plate(title, f"The scale over {total} steps, in this order: {said}.", draw)


def autocast(output: str) -> Picture:
    """Draw how far gradients are from float32's, by what ran in bf16."""
    cast = read(output, r"\] (?:plain )?(autocast): \S+, ([\d.e-]+) off")[:1]
    rest = read(output, r"\] (FSDP2, reduced in \w+): \S+, ([\d.e-]+) off", 2)
    off = {line[1]: float(line[2]) for line in [*cast, *rest]}
    worst = max(off, key=off.get)
    title = claim(
        max(off.values()) < 0.01 and worst == list(off)[-1],
        "Each is off by less than a hundredth; adding up in bf16 costs most",
    )
    rows = [
        Row(n, [(v, "plain")], f"{1000 * v:.1f} thousandths") for n, v in off.items()
    ]
    alt = "How far the gradient is off: " + "; ".join(
        f"{r.name} {r.said}" for r in rows
    )
    most = max(off.values())
    return plate(title, alt, lambda width: bars(width, rows, most, 200, 150))


def sums(output: str) -> Picture:
    """Draw the error of a sum over the number of ranks, by the order of adding."""
    pattern = r"^(\d+) +([\d.]+) \(\d+\) +([\d.]+) \(\d+\) +([\d.]+) \(\d+\)$"
    lines = read(output, pattern, 4)
    ranks = [int(line[1]) for line in lines]
    ways = ("in turn", "in pairs", "in float32")
    errors = {way: [float(line[i + 2]) for line in lines] for i, way in enumerate(ways)}
    most = errors["in turn"][-1]
    title = claim(
        most > 10 > 1 > errors["in pairs"][-1],
        f"Added in turn, the error grows to {most:.0f} units; in pairs it stays below "
        f"1",
    )
    bend = {"in turn": ("none", 2.5), "in pairs": ("7 4", 2), "in float32": ("2 4", 2)}

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 270)
        share = lambda w: log2(w / ranks[0]) / log2(ranks[-1] / ranks[0])  # noqa: E731
        x_axis = Axis([(w, f"{w:,}") for w in ranks], share, "ranks")
        y_share = lambda e: (log10(e) + 1) / 3  # noqa: E731
        ticks = [(0.1, "0.1"), (1, "1"), (10, "10"), (100, "100")]
        y_axis = Axis(ticks, y_share, "mean error, in units of bf16's rounding")
        plot = Plot(sheet, x_axis, y_axis, 190, right=96, left=34)
        for way, (dash, thick) in bend.items():
            points = list(zip(ranks, errors[way], strict=True))
            drop = {"in pairs": -7, "in float32": 9}.get(way, 0)
            plot.line(points, way, dash, thick, drop=drop, bold=way == "in turn")
        # The two numbers that the text speaks of.
        for place in (-1, -2):
            x, y = plot.at(ranks[place], errors["in turn"][place])
            side = "end" if place == -1 else "middle"
            sheet.words(
                x - 8 * (place == -1), y - 12, f"{errors['in turn'][place]:.3g}", side
            )
        return sheet

    said = "; ".join(
        f"{way} "
        + ", ".join(f"{e:g} on {w}" for w, e in zip(ranks, errors[way], strict=True))
        for way in ways
    )
    return plate(title, f"Errors by the number of ranks: {said}.", draw)


def offs(output: str) -> Picture:
    """Draw how far gradients are off, on a scale of powers of ten.

    It takes what ``ch10_accumulate.py`` and ``ch10_clip.py`` print.
    """
    lines = read(output, r"\] (\S.*?) +(?:norm +[\d.]+, )?([\d.e+-]+) off", 8)
    off = {line[1]: float(line[2]) for line in lines}
    good = [name for name, value in off.items() if value < ROUNDING]
    title = claim(
        2 < len(good) < len(off) - 2,
        f"{len(good)} of {len(off)} ways agree up to rounding",
    )
    low, high = -17, 1

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        left, pitch = (230, 28) if inside else (0, 48)
        sheet = Sheet(width, 34 + pitch * len(off) + 22)
        right = width - 64

        def place(value: float) -> float:
            return left + 8 + (right - left - 8) * (log10(value) - low) / (high - low)

        for exponent in range(-16, high, 4):
            x = place(10.0**exponent)
            rule(sheet, f"M{x:.4g} 28V{sheet.height - 22}", thick=0.5)
            sheet.words(x, 16, power(exponent) if exponent else "1", "middle", size=FEW)
        for number, (name, value) in enumerate(off.items()):
            y = 42 + pitch * number + (0 if inside else 14)
            if inside:
                sheet.words(left - 12, y + 5, name, "end")
            else:
                sheet.words(0, y - 9, name)
            # An error of exactly 0 has no logarithm: it goes to the left end.
            x = place(max(value, 10.0**low))
            rule(sheet, f"M{left + 8} {y}H{x:.4g}", thick=1)
            if value < ROUNDING:
                dot(sheet, x, y)
                sheet.words(x + 10, y + 5, "rounding")
            else:
                fill(sheet, x - 6, y - 6, 12, 12, "strong")
                sheet.words(x + 12, y + 5, f"{value:.2g}", bold=True)
        sheet.words(right, sheet.height - 4, "relative error", "end", size=FEW)
        return sheet

    said = "; ".join(f"{name} {value:.0e}" for name, value in off.items())
    return plate(title, f"How far each way is off: {said}.", draw)


def rates(output: str) -> Picture:
    """Draw how many steps two rules for the learning rate need, by the batch size."""
    pattern = (
        r"\] (SGD|Adam) (\d+): best \S+ \((\d+)\), linear \S+ \(([^)]+)\), "
        r"root \S+ \(([^)]+)\)"
    )
    lines = read(output, pattern, 8)
    batches = sorted({int(line[2]) for line in lines})
    ways = ("best rate", "linear rule", "square root")

    # "inf" and "not tried" are no numbers of steps.
    def steps(text: str) -> float | None:
        return float(text) if text.isdigit() else None

    found: dict[str, dict[str, list]] = {"SGD": {}, "Adam": {}}
    for line in lines:
        for way, text in zip(ways, line.groups()[2:], strict=True):
            found[line[1]].setdefault(way, []).append((int(line[2]), steps(text)))
    root = [s for _, s in found["Adam"]["square root"]]
    linear_ = [s for _, s in found["SGD"]["linear rule"][1:]]
    title = claim(
        all(root) and not any(linear_),
        "Adam reaches the goal by the square root; SGD does not by the linear rule",
    )
    look = {
        "best rate": ("none", 2.5, "currentColor"),
        "linear rule": ("7 4", 2, "currentColor"),
        "square root": ("2 4", 2, "currentColor"),
    }

    def panel(sheet: Sheet, kind: str, x: float, top: float, width: float) -> None:
        share = lambda b: log2(b / batches[0]) / log2(batches[-1] / batches[0])  # noqa: E731
        x_axis = Axis([(b, f"{b}") for b in batches], share, "batch")
        ticks = [(s, f"{s}") for s in (20, 50, 100, 200, 500)]
        y_share = lambda s: log10(s / 15) / log10(900 / 15)  # noqa: E731
        y_axis = Axis(ticks, y_share, f"{kind}: steps to the goal")
        plot = Plot(sheet, x_axis, y_axis, 200, 18, 38, top, x, width)
        for way, (dash, thick, color) in look.items():
            points = [(b, s) for b, s in found[kind][way] if s is not None]
            plot.line(points, "", dash, thick, color)
        for b, s in found[kind]["best rate"]:
            px, py = plot.at(b, s)
            first = b == batches[0]  # beside the axis there is no room
            place = (px + 9, py - 4) if first else (px, py + 20)
            side = "start" if first else "middle"
            sheet.words(*place, f"{s:.0f}", side, size=FEW)
        for number, way in enumerate(ways[1:]):
            lost = [b for b, s in found[kind][way] if s is None]
            if lost:
                y = plot.bottom - 10 - 26 * number
                text = f"{way} fails at {', '.join(map(str, lost))}"
                sheet.wrong(plot.left + 6, y, text)

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 0)
        for number, way in enumerate(ways):
            dash, thick, color = look[way]
            x = number * (150 if wide(sheet) else 118)
            rule(sheet, f"M{x} 9h24", dash, color, thick)
            sheet.words(x + 29, 14, way, size=FEW)
        if wide(sheet):
            half = (width - 24) / 2
            panel(sheet, "SGD", 0, 56, half)
            panel(sheet, "Adam", half + 24, 56, half)
            sheet.height = 300
        else:
            panel(sheet, "SGD", 0, 56, width)
            panel(sheet, "Adam", 0, 350, width)
            sheet.height = 594
        return sheet

    said = "; ".join(
        f"{kind} with the {way}: "
        + ", ".join(f"{s:g} at {b}" if s else f"never at {b}" for b, s in points)
        for kind, by_way in found.items()
        for way, points in by_way.items()
    )
    return plate(title, f"Steps to the goal, by the batch. {said}.", draw)


def shares(data: Mapping) -> Picture:
    """Draw which fraction of the steps is left with four times the batch.

    Args:
        data: by ``SGD_16`` and so on, the ``low`` and ``high`` of several searches.
    """
    batches = sorted({int(key_.partition("_")[2]) for key_ in data})
    rows = []
    for kind in ("SGD", "Adam"):
        for batch in batches:
            low, high = (data[f"{kind}_{batch}"][end] for end in ("low", "high"))
            name = f"{kind}, from {batch // 4} to {batch}"
            # What all seeds needed, and behind it what only some did.
            parts = [(low, "strong"), (high - low, "plain")]
            rows.append(Row(name, parts, f"{100 * low:.0f} to {percent(high)}"))
    first, last = data[f"SGD_{batches[0]}"], data[f"SGD_{batches[-1]}"]
    title = claim(
        first["high"] < last["low"],
        "Each further fourfold batch saves less: the fraction of steps that is left",
    )
    legend = [("strong", "with all seeds"), ("plain", "with some")]
    alt = "Fractions of the steps: " + "; ".join(f"{r.name}: {r.said}" for r in rows)
    alt += ". A quarter, 25 %, would be the best possible."
    mark = (0.25, "hoped for: 25 %")
    return plate(
        title,
        alt,
        lambda width: bars(width, rows, 1, 190, 110, legend=legend, mark=mark),
    )


def float32(x: float) -> float:
    """Round to float32.

    >>> float32(1 + 2**-24), float32(1 + 2**-23) > 1
    (1.0, True)
    """
    return struct.unpack("f", struct.pack("f", x))[0]


def orders() -> Picture:
    """Draw two orders of adding the same three numbers, and their sums."""
    small = 2.0**-24
    turn = [1.0, float32(1 + small), float32(float32(1 + small) + small)]
    pair = [float32(small + small), float32(1 + float32(small + small))]
    title = claim(
        turn[-1] == 1 < pair[-1] == 1 + 2.0**-23,
        "The same three numbers in another order give another sum",
    )
    tiny, twice = power(-24, 2), power(-23, 2)

    def add(
        sheet: Sheet, x: float, y: float, name: str, texts: list, wrong: str
    ) -> None:
        """Draw a column of boxes: each pair of lines is a sum."""
        sheet.words(x, y, name, bold=True)
        box = 100
        # Above the terms, below them the first sum and what is left.
        first, second = texts
        for i, text in enumerate(first):
            sheet.box(x + i * (box + 12), y + 14, box, 34, text, bold=False)
        for i, text in enumerate(second):
            sheet.box(x + (box + 12) * i + 56, y + 84, box, 34, text, bold=False)
        for i in range(2):
            at = x + 56 + box / 2 - 30 + (box + 12) * (name != "in turn") + 60 * i
            sheet.arrow(f"{at:.4g},{y + 50} {at:.4g},{y + 82}")
        at = x + 56 + box + 6
        sheet.arrow(f"{at:.4g},{y + 120} {at:.4g},{y + 146}")
        if wrong:
            sheet.wrong(at, y + 168, wrong, "middle")
        else:
            sheet.box(at - 75, y + 150, 150, 34, f"1 + {twice}", bold=True)

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 0)
        add(
            sheet,
            0,
            16,
            "in turn",
            [["1", tiny, tiny], ["1, rounded", tiny]],
            "1: both lost",
        )
        x, y = (400, 16) if wide(sheet) else (0, 224)
        add(sheet, x, y, "small ones first", [["1", tiny, tiny], ["1", twice]], "")
        sheet.height = y + 190
        return sheet

    alt = (
        f"In float32, 1 + {tiny} is rounded to 1, and so is the second sum. "
        f"{tiny} + {tiny} is {twice}, and 1 + {twice} is kept."
    )
    return plate(title, alt, draw)
