"""Pictures of chapter 3: what a resumed run needs, who writes, who reads which rows."""

from math import ceil, log

from allranks.base.picture import Picture
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import (
    Plot,
    claim,
    fill,
    key,
    linear,
    plate,
    read,
    rule,
    wide,
)

CLASSES = 10  # a guess among so many answers has a loss of ln 10


def losses(output: str) -> Picture:
    """Draw three losses after each way to load, beside those of the run itself."""
    pattern = r"^(\w[\w ]*?): ([\d.]+) ([\d.]+) ([\d.]+)(?:,|$)"
    lines = read(output, pattern, 4)
    found = {line[1]: [float(x) for x in line.groups()[1:]] for line in lines}
    wanted = ("never stopped", "load_not_strict", "load_weights", "load_all")
    if missing := [name for name in wanted if name not in found]:
        raise ValueError(f"the output has no losses of {', '.join(missing)}")
    guess, whole = log(CLASSES), found["never stopped"]
    weights = found["load_weights"]
    title = claim(
        weights[0] == whole[0]
        and weights[1] > 0.8 * guess
        and found["load_all"] == whole,
        "With the weights alone, the first loss is right, and the next one is a guess",
    )
    shown = {
        "load_all": ("load_all, as if it never stopped", "none", 2.5),
        "load_weights": ("load_weights: a new Adam", "7 4", 2.5),
        "load_not_strict": ("strict=False: nothing loaded", "2 4", 2),
    }

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        sheet = Sheet(width, 300 if inside else 360)
        top = 26 if inside else 90
        axis = linear([1, 2, 3], "step after loading", low=1)
        plot = Plot(
            sheet,
            axis,
            linear([0, 1, 2, 3], "loss"),
            210,
            260 if inside else 20,
            30,
            top,
        )
        # Without training, a guess among all answers costs ln 10.
        y = plot.at(1, guess)[1]
        rule(
            sheet,
            f"M{plot.left:.4g} {y:.4g}H{plot.right:.4g}",
            "1 3",
            "currentColor",
            1,
        )
        sheet.words(plot.right, y - 7, f"a guess: ln {CLASSES} = {guess:.1f}", "end")
        for place, (name, (text, dash, thick)) in enumerate(shown.items()):
            points = list(enumerate(found[name], 1))
            drop = {"load_weights": -8, "load_all": 6}.get(name, 0)
            plot.line(points, text if inside else "", dash, thick, drop=drop)
            if not inside:
                rule(sheet, f"M0 {14 + 22 * place}h30", dash, "currentColor", thick)
                sheet.words(38, 19 + 22 * place, text)
        return sheet

    said = "; ".join(f"{name} {', '.join(map(str, found[name]))}" for name in wanted)
    return plate(title, f"Losses of three steps: {said}.", draw)


def lost(output: str) -> Picture:
    """Draw from which step on losses differ if a piece is missing from the file."""
    lines = read(output, r"\] lost (\w+): (?:off by ([\d.]+), from step (\d+))?", 7)
    found = {m[1]: (float(m[2]), int(m[3])) if m[2] else None for m in lines}
    starts = [one[1] for one in found.values() if one]
    first, num = min(starts), max(starts) + 2 - min(starts)
    # Weights are right after loading; a new optimizer shows a step later.
    late = [name for name, one in found.items() if one and one[1] > first]
    title = claim(
        found["nothing"] is None and len(starts) == len(found) - 1 and late,
        f"Each missing piece changes the losses; {len(late)} of them do so later",
    )

    def draw(width: int) -> Sheet:
        name = 100
        end = 96
        cell = (width - name - end) / num
        sheet = Sheet(width, 28 + 32 * len(found) + 24)
        for i in range(num):
            text = f"step {first + i}" if wide(sheet) else f"{first + i}"
            sheet.words(name + cell * (i + 0.5), 16, text, "middle")
        if not wide(sheet):
            sheet.words(0, 16, "step")
        for place, (piece, one) in enumerate(found.items()):
            y = 26 + 32 * place
            sheet.words(0, y + 19, piece, bold=one is None)
            for i in range(num):
                bad = one is not None and first + i >= one[1]
                box = (name + cell * i + 2, y, cell - 4, 28)
                fill(sheet, *box, "wrong" if bad else "plain")
            said = "the same" if one is None else f"up to {one[0]:.2f}"
            sheet.words(width, y + 19, said, "end", bold=one is None)
        y = 26 + 32 * len(found) + 6
        key(sheet, name, [("plain", "the same loss"), ("wrong", "another")], y)
        return sheet

    said = "; ".join(
        f"without {piece}, off by up to {one[0]:g} from step {one[1]} on"
        for piece, one in found.items()
        if one
    )
    return plate(
        title, f"Losses after resuming: with all pieces the same; {said}.", draw
    )


def writes(given: str) -> Picture:
    """Draw who writes, who waits and who reads.

    Args:
        given: the number of ranks.
    """
    num = int(given)

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 34 + 36 * num + 30)
        name = 60
        unit = (width - name - 4) / 10
        parts = ((0, 3.4, "writes checkpoint.pt.new"), (3.4, 1.6, "renames"))
        if not wide(sheet):
            parts = ((0, 3.2, "writes .new"), (3.2, 2.4, "renames"))
        # Lengths are not measured: only the order counts.
        barrier = sum(part[1] for part in parts) + 0.4
        for rank in range(num):
            y = 30 + 36 * rank
            sheet.words(0, y + 19, f"rank {rank}")
            for begin, long_, text in parts if rank == 0 else ():
                place = (name + unit * begin, y, unit * long_ - 2, 28)
                strong = 0.36 if text == "renames" else 0.2
                sheet.box(*place, text, rank=0, strong=strong, bold=False)
            if rank:
                fill(sheet, name, y, unit * barrier - 4, 28, "waits")
                sheet.words(name + unit * barrier / 2, y + 19, "waits", "middle")
            place = (name + unit * (barrier + 0.3), y, unit * (9.7 - barrier), 28)
            sheet.box(*place, "reads", rank=rank, strong=0.3, bold=False)
        x = name + unit * (barrier + 0.1)
        rule(sheet, f"M{x:.4g} 22V{34 + 36 * num}", color="currentColor", thick=2.5)
        sheet.words(x, 15, "barrier", "middle", bold=True)
        return sheet

    return plate(
        "Nobody reads before rank 0 has renamed the file",
        f"Rank 0 writes a new file and renames it, while ranks 1 to {num - 1} wait at "
        f"the barrier. Behind the barrier all {num} ranks read.",
        draw,
    )


def atomic(output: str) -> Picture:
    """Draw what a name leads to while a save fails, with and without a rename."""
    pattern = r"^(?:after|left by a failed) (save_in_place|save)(?: failed)?: (.+)$"
    left = {line[1]: line[2] for line in read(output, pattern, 2)}
    title = claim(
        "Error" in left["save_in_place"] and "model" in left["save"],
        "With a rename, the name leads to a whole file at any moment",
    )
    ways = (
        ("torch.save(state, path)", "save_in_place", ("the old file", "half a file")),
        ("write .new, then rename", "save", ("the old file", "the old file")),
    )

    def draw(width: int) -> Sheet:
        sheet, y = Sheet(width, 0), 0
        cut = 0.62
        sheet.words(width * cut, 16, "here it fails", "middle", bold=True)
        for text, name, (before, during) in ways:
            sheet.words(0, y + 46, text, bold=True)
            y += 56
            # Before the save, during it until it fails, and what is left.
            one, two = width * 0.34, width * (cut - 0.34)
            fill(sheet, 0, y, one - 2, 34, "plain")
            sheet.words(one / 2, y + 22, before, "middle")
            good = name == "save"
            fill(sheet, one, y, two, 34, "plain" if good else "wrong")
            if good:
                sheet.words(one + two / 2, y + 22, during, "middle")
            else:
                sheet.words(one + two / 2, y + 22, during, "middle", color="#1b1b1b")
            words = f"left: {left[name]}" if good else "nothing can be read"
            if wide(sheet):
                sheet.words(width * cut + 14, y + 22, words, bold=good)
            else:
                y += 20
                sheet.words(0, y + 34, words, bold=good)
            y += 22
        sheet.height = y + 26
        rule(
            sheet,
            f"M{width * cut:.4g} 22V{sheet.height - 8:.4g}",
            "5 4",
            "currentColor",
        )
        return sheet

    alt = (
        "The name checkpoint.pt over the time of a save that fails. Written in place, "
        f"it leads to half a file, and afterwards: {left['save_in_place']}. With a new "
        "file and a rename it leads to the old file, with its "
        f"{left['save'].count(',') + 1} entries {left['save']}."
    )
    return plate(title, alt, draw)


def shards(table: str) -> Picture:
    """Draw who saved which rows of a weight, and who loads which, from DCP's folder."""
    lines = read(table, r"^(\d+) +([\d; ]+?)  +[\d; ]+  +yes$", 3)
    loads = [[int(n) for n in line[2].split(";")] for line in lines]
    num = sum(loads[0])
    if any(sum(rows) != num for rows in loads):
        raise ValueError(f"rows by rank do not add up to {num}: {loads}")
    share = ceil(num / 4)  # as torch.chunk cuts
    saved = [max(0, min(share, num - share * rank)) for rank in range(4)]
    groups = [("saved on 4", saved)]
    groups += [(f"loaded on {len(rows)}", rows) for rows in loads]

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 34 + 40 * num)
        left = 54 if wide(sheet) else 0
        room = (width - left) / len(groups)
        for row in range(num if left else 0):
            sheet.words(0, 34 + 40 * row + 22, f"row {row}")
        for place, (name, rows) in enumerate(groups):
            x, y = left + room * place, 26.0
            text = (
                name
                if wide(sheet)
                else name.replace("loaded", "on").replace("on on", "on")
            )
            sheet.words(x + room / 2, 16, text, "middle", bold=True)
            for rank, count in enumerate(rows):
                high = 40 * count
                if count:
                    box = (x + 6, y + 2, room - 12, high - 4)
                    sheet.box(*box, f"rank {rank}", rank=rank, strong=0.3)
                y += high
        return sheet

    said = "; ".join(
        f"{name}: " + ", ".join(f"rank {r} has {n}" for r, n in enumerate(rows))
        for name, rows in groups
    )
    return plate(
        "Each rank reads the rows that its own tensors need",
        f"A weight of {num} rows. {said}. Each got the right values.",
        draw,
    )


def landing(given: str) -> Picture:
    """Draw where ranks load a file to, without and with ``map_location``.

    Args:
        given: the number of ranks.
    """
    num = int(given)

    def half(sheet: Sheet, x: float, width: float, mapped: bool) -> None:
        title = 'map_location="cpu"' if mapped else "without map_location"
        sheet.words(x, 16, title, bold=True)
        cell, y = width / num, 150
        high = 26 * num + 10
        for rank in range(num):
            left = x + cell * rank
            sheet.box(left + 2, 30, cell - 6, 34, f"rank {rank}", rank=rank, strong=0.3)
            sheet.frame(left + 2, y, cell - 6, high, rank=rank)
            sheet.words(left + cell / 2 - 1, y + high + 18, f"GPU {rank}", "middle")
            # The file names rank 0's GPU, so all copies go there.
            to = left if mapped else x
            start = f"{left + cell / 2 - 1:.4g},66"
            sheet.arrow(f"{start} {to + cell / 2 - 1:.4g},{y - 4}", thick=1.5)
            at = high - 26 * (1 if mapped else rank + 1) - 4
            place = (to + 6, y + at, cell - 14, 22)
            sheet.box(*place, "copy", rank=rank, strong=0.36, bold=False)

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 0)
        high = 150 + 26 * num + 38
        if wide(sheet):
            part = width / 2 - 20
            half(sheet, 0, part, False)
            half(sheet, width / 2 + 20, part, True)
            sheet.height = high
        else:
            for place, mapped in enumerate((False, True)):
                below = Sheet(width, high)
                half(below, 0, width, mapped)
                sheet.put(below, 0, place * (high + 16))
        return sheet

    return plate(
        "Without map_location, each rank's copy lands on GPU 0",
        f"{num} ranks load one file. Without map_location all {num} copies go to GPU "
        "0, which the file names. With map_location each copy goes through the CPU to "
        "the rank's own GPU.",
        draw,
    )
