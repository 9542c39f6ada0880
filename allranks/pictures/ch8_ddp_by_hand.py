"""Pictures of chapter 8: when messages leave, what hides, what compression costs."""

import re
from collections.abc import Mapping

from allranks.base.picture import Picture
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import (
    BAR,
    Row,
    bars,
    claim,
    fill,
    in_two,
    key,
    plate,
    read,
    rule,
    stick,
    wide,
)

VERSIONS = {
    "per_parameter": "a message per parameter",
    "flat": "one message",
    "from_hook": "per parameter, from its hook",
    "buckets": "buckets, from hooks",
}
LATE = {
    "buckets_late": "filled from the last parameter",
    "by_hand": "the order is learned",
    "torch": "torch's DDP",
}


def when(output: str) -> Picture:
    """Draw which gradients are ready, and which messages leave, in each version.

    Args:
        output: what several versions printed of one step, one after the other.
    """
    found = re.findall(
        r"^\$ .*?ch8_(\w+)\.py.*?\n(?:.*\n)*?.*one step: ([gM ]+);", output, re.M
    )
    if len(found) < 2:
        raise ValueError(f"no two lines such as one step: g g M; in {output[:80]}…")
    names = {"per_parameter": "one each", "flat": "one for all"}
    steps = [(names.get(name, name), text.split()) for name, text in found]
    early = {
        name: sum("g" in marks[i:] for i, mark in enumerate(marks) if mark == "M")
        for name, marks in steps
    }
    title = claim(
        max(early.values()) == early[steps[-1][0]] > 0 == early[steps[0][0]],
        f"With buckets, {early[steps[-1][0]]} messages leave while backward is still "
        "running",
    )

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        most = max(len(marks) for _, marks in steps)
        left, pitch = (90, 44) if inside else (0, 64)
        cell = (width - left) / most
        sheet = Sheet(width, 32 + pitch * len(steps))
        key(sheet, left, [("faint", "gradient"), ("travels", "message")])
        rule(sheet, f"M{left + 236} 0v18", color="currentColor", thick=2.5)
        sheet.words(left + 244, 13, "backward ends" if inside else "end")
        for place, (name, marks) in enumerate(steps):
            y = 32 + pitch * place + (0 if inside else 20)
            sheet.words(0, y + 20 if inside else y - 5, name, bold=True)
            for i, mark in enumerate(marks):
                kind = "faint" if mark == "g" else "travels"
                fill(sheet, left + cell * i + 1, y, cell - 3, 30, kind)
            # Backward ends with its last gradient.
            last = max(i for i, mark in enumerate(marks) if mark == "g")
            x = left + cell * (last + 1) - 0.5
            rule(sheet, f"M{x:.4g} {y - 4}v38", color="currentColor", thick=2.5)
        return sheet

    said = "; ".join(
        f"{name}: {' '.join(marks)}, {early[name]} of {marks.count('M')} messages early"
        for name, marks in steps
    )
    alt = f"The order of gradients (g) and messages (M). {said}."
    return plate(title, alt, draw)


def _versions(data: Mapping, names: Mapping[str, str], title: str) -> Picture:
    """Draw the time of a step of several versions; what exceeds 1 is waiting."""
    ratios = {name: data[key_]["ratio"] for key_, name in names.items()}
    rows = [
        Row(name, [(1, "plain"), (ratio - 1, "waits")], f"{ratio:.2f}")
        for name, ratio in ratios.items()
    ]
    legend = [("plain", "computes"), ("waits", "waits for messages")]
    alt = "Times of a step, if one without messages takes 1: " + "; ".join(
        f"{name} {ratio:.2f}" for name, ratio in ratios.items()
    )
    most = max(ratios.values())
    return plate(
        title, alt, lambda width: bars(width, rows, most, 230, 60, legend=legend)
    )


def saved(data: Mapping) -> Picture:
    """Draw how much each version of DDP saves, from ``make bench``."""
    ratio = {name: data[name]["ratio"] for name in VERSIONS}
    title = claim(
        min(ratio, key=ratio.get) == "buckets" and ratio["from_hook"] < ratio["flat"],
        "Buckets sent from hooks hide most of the waiting",
    )
    return _versions(data, VERSIONS, title)


def late(data: Mapping) -> Picture:
    """Draw what a wrong order of the buckets costs, from ``make bench``."""
    ratio = {name: data[name]["ratio"] for name in LATE}
    title = claim(
        ratio["buckets_late"] > data["flat"]["ratio"] > ratio["by_hand"],
        "A wrong guess of the order hides nothing",
    )
    return _versions(data, LATE, title)


def trace(output: str) -> Picture:
    """Draw backward and the messages of a recorded step over time."""
    backward = float(read(output, r"backward: \d+ operations in ([\d.]+) ms")[0][1])
    lines = read(
        output, r"message (\d+): ([\d.]+) to ([\d.]+) ms, ([\d.]+) ms of it", 2
    )
    spans = [(float(line[2]), float(line[3]), float(line[4])) for line in lines]
    end = max(stop for _, stop, _ in spans)
    title = claim(
        spans[0][0] < backward < end,
        f"The first message begins during backward; the step then waits for "
        f"{end - backward:.1f} ms",
    )

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        name = 96 if inside else 78
        unit = (width - name - 46) / end
        sheet = Sheet(width, 0)
        sheet.words(0, 24, "backward")
        fill(sheet, name, 6, unit * backward, 28, "plain")
        fill(sheet, name + unit * backward, 6, unit * (end - backward), 28, "waits")
        sheet.words(name + unit * backward / 2, 25, f"{backward:g} ms", "middle")
        x = name + unit * (backward + end) / 2
        sheet.words(
            x, 25, f"waits {end - backward:.1f}" if inside else "waits", "middle"
        )
        line = name + unit * backward
        rule(sheet, f"M{line:.4g} 2V{46 + 36 * len(spans)}", "5 4", "currentColor")
        for place, (start, stop, hidden) in enumerate(spans):
            y = 46 + 36 * place
            sheet.words(
                0,
                y + 19,
                f"message {lines[place][1]}" if inside else f"message {place}",
            )
            fill(sheet, name + unit * start, y, unit * (stop - start), 28, "travels")
            # Left of the bar, if there is room.
            x, side = name + unit * start - 8, "end"
            text = f"{hidden:g} of {stop - start:.1f} ms hidden"
            if 8 * len(text) > unit * start:
                x, side = name + unit * stop + 8, "start"
            if inside:
                wide_ = 7.6 * len(text)
                sheet.blank(x - (wide_ if side == "end" else 0), y + 4, wide_, 20)
                sheet.words(x, y + 19, text, side)
        bottom = 46 + 36 * len(spans)
        sheet.words(line, bottom + 20, "backward ends", "middle")
        if inside:
            sheet.words(width, bottom + 20, f"{end:g} ms", "end", bold=True)
        sheet.height = bottom + 28
        return sheet

    said = "; ".join(
        f"message {i} from {a:g} to {b:g} ms, {h:g} ms of it hidden"
        for i, (a, b, h) in enumerate(spans)
    )
    return plate(title, f"Backward ends after {backward:g} ms. {said}.", draw)


def compressed(output: str) -> Picture:
    """Draw the last test loss and the bytes of each way to send less."""
    pattern = r"\] (\S.*?) +([\d.]+) kB a step, test loss: ([\d. ]+)$"
    lines = read(output, pattern, 2)
    kb = {line[1]: float(line[2]) for line in lines}
    loss = {line[1]: float(line[3].split()[-1]) for line in lines}
    least = min(kb.values())
    # The two that send least differ in their feedback only.
    pair = [name for name in kb if kb[name] == least]
    title = claim(
        len(pair) == 2 and loss[pair[1]] > 2 * loss[pair[0]],
        f"The same {least:g} kB: with feedback a loss of {loss[pair[0]]:.2f}, without "
        f"{loss[pair[1]]:.2f}",
    )

    most, worst = max(kb.values()), max(loss.values())

    def row(sheet: Sheet, name: str, y: float, left: float, half: float) -> None:
        long_ = (half - 74) * kb[name] / most
        fill(sheet, left, y, long_, BAR, "travels")
        sheet.words(left + long_ + 7, y + 17, f"{kb[name]:g}")
        long_ = (half - 64) * loss[name] / worst
        fill(sheet, left + half, y, long_, BAR, "plain")
        sheet.words(left + half + long_ + 7, y + 17, f"{loss[name]:.3f}", bold=True)

    heads = "kB a step", "test loss at the end"
    said = "; ".join(f"{name}: {kb[name]:g} kB, loss {loss[name]:g}" for name in kb)
    draw = in_two(list(kb), heads, 120, row)
    return plate(title, f"Bytes per step and test loss: {said}.", draw)


def seldom(output: str) -> Picture:
    """Draw bytes per token and loss of ways that communicate less often."""
    lines = read(output, r"\] (\S.*?) +([\d.]+) bytes per token, test loss=([\d.]+)", 4)
    cost = {line[1]: float(line[2]) for line in lines}
    loss = {line[1]: float(line[3]) for line in lines}
    title = claim(
        loss["DDP"] == min(loss.values()) and cost["local SGD"] < 0.1 * cost["DDP"],
        f"Local SGD sends a {cost['DDP'] / cost['local SGD']:.0f}th of the bytes, for "
        "a slightly higher loss",
    )
    # The losses are close, so their axis begins at the best one.
    low, high = min(loss.values()), max(loss.values())

    def row(sheet: Sheet, name: str, y: float, left: float, half: float) -> None:
        long_ = (half - 74) * cost[name] / max(cost.values())
        if long_:
            fill(sheet, left, y, long_, BAR, "travels")
        sheet.words(left + long_ + 7, y + 17, f"{cost[name]:g}")
        x = left + half + 8 + (half - 80) * (loss[name] - low) / (high - low or 1)
        stick(sheet, left + half + 8, x, y, f"{loss[name]:.3f}")

    draw = in_two(list(cost), ("bytes per token", "test loss"), 110, row)
    said = "; ".join(
        f"{n}: {cost[n]:g} bytes per token, loss {loss[n]:g}" for n in cost
    )
    return plate(title, f"Five ways. {said}.", draw)


def pieces(output: str) -> Picture:
    """Draw into how many graphs a compiled step is cut, and how large they are."""
    found = re.findall(
        r"optimize=(\w+): (?:graphs: )?\d+.*?operations: \[([\d, ]+)\]", output
    )
    sizes = {name: [int(n) for n in text.split(",")] for name, text in found}
    if set(sizes) != {"False", "True"}:
        raise ValueError("the output has no lines optimize=False and optimize=True")
    title = claim(
        len(sizes["False"]) == 1 < len(sizes["True"]),
        f"Cut where the buckets end: {len(sizes['True'])} graphs, so buckets leave "
        f"early",
    )

    def draw(width: int) -> Sheet:
        sheet, y = Sheet(width, 0), 0
        for name, text in (
            ("False", "one graph"),
            ("True", "cut by DDP's buckets; ↓ gradients leave"),
        ):
            # A piece is as wide as its share of the operations.
            unit = width / sum(sizes[name])
            sheet.words(0, y + 15, text, bold=True)
            x = 0.0
            for size in sizes[name]:
                fill(sheet, x + 1, y + 24, unit * size - 3, 34, "plain")
                said = f"{size} operations" if unit * size > 130 else f"{size}"
                sheet.words(x + unit * size / 2, y + 46, said, "middle")
                x += unit * size
                sheet.arrow(f"{x - 4:.4g},{y + 60} {x - 4:.4g},{y + 78}", thick=2.5)
            y += 92
        sheet.height = y
        return sheet

    said = "; ".join(f"optimize={name}: {s}" for name, s in sizes.items())
    return plate(title, f"Operations in each graph: {said}.", draw)


def crossed() -> Picture:
    """Draw an all_gather of two ranks, and how the gradients of its rows go back."""

    def half(sheet: Sheet, x: float, width: float, forward: bool) -> None:
        name = "forward: all_gather" if forward else "backward: reduce_scatter"
        sheet.words(x, 16, name, bold=True)
        # Forward has one box and then two, backward two and a wide one.
        box, high = (width - 44) / (3 if forward else 3.6), 40
        for rank in range(2):
            y = 48 + 74 * rank
            sheet.words(x, y - 6, f"rank {rank}")
            rows = (
                [(f"x{rank}", rank)]
                if forward
                else [(f"g{rank}[{i}]", rank) for i in (0, 1)]
            )
            for i, (text, owner) in enumerate(rows):
                sheet.box(x + i * box, y, box - 4, high, text, rank=owner, strong=0.3)
            at = x + len(rows) * box
            sheet.arrow(f"{at + 4:.4g},{y + high / 2} {at + 32:.4g},{y + high / 2}")
            at += 40
            if forward:
                for i in range(2):
                    place = (at + i * box, y, box - 4, high)
                    sheet.box(*place, f"x{i}", rank=i, strong=0.3)
                continue
            sheet.box(at, y, 1.6 * box, high, f"g0[{rank}] + g1[{rank}]", strong=0.05)
            for i in range(2):
                fill(sheet, at + i * 0.8 * box, y + high - 7, 0.8 * box, 7, "strong", i)

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 168)
        if wide(sheet):
            half(sheet, 0, width / 2 - 20, True)
            half(sheet, width / 2 + 10, width / 2 - 10, False)
        else:
            for place, forward in enumerate((True, False)):
                below = Sheet(width, 168)
                half(below, 0, width, forward)
                sheet.put(below, 0, 180 * place)
        return sheet

    return plate(
        "What an all_gather copies to all ranks, its backward has to add up",
        "Forward: rank 0 has x0, rank 1 has x1; then both have the rows x0 and x1. "
        "Backward: rank 0 has the gradients g0[0] and g0[1] of the rows, rank 1 has "
        "g1[0] and g1[1]. Rank 0 gets g0[0] + g1[0], rank 1 gets g0[1] + g1[1].",
        draw,
    )


def bucket(given: str) -> Picture:
    """Draw what two ranks put into a bucket of two parameters, of which one is missing.

    Args:
        given: how many numbers the two parameters have, such as ``6 2``.
    """
    first, second = map(int, given.split())
    # (rank, its two gradients, counts, ranks): a gradient that is missing is zeros.
    rows = (
        ("rank 0 sends", 0, ("g0 / 2", "h0 / 2"), ("1", "1"), ("1", "0")),
        ("rank 1 sends", 1, ("g1 / 2", "zeros"), ("1", "0"), ("0", "1")),
        ("both get", None, ("the mean", "h0 / 2"), ("2", "1"), ("1", "1")),
    )

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        left, pitch = (110, 52) if inside else (0, 72)
        unit = (width - left) / (first + second + 4.8)
        sheet = Sheet(width, 26 + pitch * len(rows))
        x, ends = float(left), []
        names = (f"{first} numbers", f"{second}", "counts", "ranks")
        for name, size in zip(names, (first, second, 2.4, 2.4), strict=True):
            sheet.words(x + unit * size / 2, 15, name, "middle", bold=True)
            ends.append((x, unit * size))
            x += unit * size
        for place, (name, rank, grads, counts, ranks) in enumerate(rows):
            y = 26 + pitch * place + (0 if inside else 20)
            sheet.words(0, y + 23 if inside else y - 5, name)
            for (start, long_), text in zip(ends[:2], grads, strict=True):
                # Stripes under a result say whose gradients are in it.
                zeros = text == "zeros"
                strong = 0.06 if zeros or rank is None else 0.3
                box = (start + 2, y, long_ - 4, 36)
                sheet.box(
                    *box, text, rank=rank, strong=strong, bold=False, dashed=zeros
                )
                if rank is None:
                    owners = (0, 1) if text == "the mean" else (0,)
                    for i, owner in enumerate(owners):
                        part = (long_ - 4) / len(owners)
                        fill(
                            sheet,
                            start + 2 + part * i,
                            y + 30,
                            part,
                            6,
                            "strong",
                            owner,
                        )
            for (start, long_), texts in zip(ends[2:], (counts, ranks), strict=True):
                for i, text in enumerate(texts):
                    box = (start + 2 + long_ / 2 * i, y, long_ / 2 - 4, 36)
                    sheet.box(*box, text, strong=0.06)
        return sheet

    return plate(
        "Zeros stand in for a missing gradient, and the tail counts who had one",
        f"A bucket of {first} and {second} numbers and a tail. Rank 0 sends half of "
        "both gradients, counts 1, 1 and ranks 1, 0. Rank 1 lacks the second "
        "gradient: it sends half of the first, zeros, counts 1, 0 and ranks 0, 1. "
        "Both get the mean of the first, half of rank 0's second, counts 2, 1 and "
        "ranks 1, 1.",
        draw,
    )


def left_out(output: str) -> Picture:
    """Draw the graphs of an operator whose result is used, and of one that is not."""
    pattern = r"\] (operator(?:, result not used)?): ([\w ]+), backward: ([\w ]+)$"
    lines = read(output, pattern, 2)
    graphs = {line[1]: (line[2].split(), line[3].split()) for line in lines}
    used, unused = (graphs[name] for name in ("operator", "operator, result not used"))
    title = claim(
        "all_gather" in used[0] and "all_gather" not in unused[0] + unused[1],
        "If nobody uses its result, the compiled graph has no all_gather",
    )

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        sheet, high = Sheet(width, 0), 34 if inside else 44
        most = max(len(names) for both in graphs.values() for names in both)
        left = 78
        box = min(150, (width - left) / most)
        for name, both in graphs.items():
            text = (
                "its result is used" if name == "operator" else "its result is not used"
            )
            sheet.words(0, sheet.height + 15, text, bold=True)
            y = sheet.height + 26
            for way, names in zip(("forward", "backward"), both, strict=True):
                sheet.words(0, y + high / 2 + 5, way)
                for i, what in enumerate(names):
                    x = left + box * i
                    # The collectives are what another rank may wait for.
                    sends = what in ("all_gather", "reduce_scatter")
                    place = (x, y, box - 8, high)
                    fill(sheet, *place, "travels" if sends else "faint")
                    middle = x + (box - 8) / 2
                    names_ = [what] if inside else what.replace("_", "_ ").split()
                    at = y + high / 2 + 5 - 8 * (len(names_) - 1)
                    for part in names_:
                        if sends:
                            wide_ = 8.4 * len(part)
                            sheet.blank(middle - wide_ / 2, at - 14, wide_, 19)
                        sheet.words(middle, at, part, "middle", bold=sends)
                        at += 16
                y += high + 8
            sheet.height = y + 10
        return sheet

    said = "; ".join(
        f"{name}: {' '.join(forward)}, backward: {' '.join(backward)}"
        for name, (forward, backward) in graphs.items()
    )
    return plate(title, f"2 compiled graphs. {said}.", draw)
