"""Pictures of the clinic's pages: a hang, and what must be equal."""

from allranks.base.picture import Picture
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import Row, bars, claim, fill, plate, read, wide


def missing(given: str) -> Picture:
    """Draw ranks that wait for one that never calls.

    Args:
        given: how many ranks, and which one is missing, such as ``4 1``.
    """
    num, lost = map(int, given.split())

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 30 + 36 * num + 28)
        name = 60
        unit = (width - name) / 10
        for rank in range(num):
            y = 26 + 36 * rank
            sheet.words(0, y + 19, f"rank {rank}")
            # Any unequal lengths: being late for a collective is no fault.
            long_ = (2.4, 3.0, 2.0, 2.7)[rank % 4]
            fill(sheet, name, y, unit * long_, 28, "plain", rank)
            if rank == lost:
                x = name + unit * long_ + 10
                sheet.wrong(
                    x, y + 19, "elsewhere, or gone" if wide(sheet) else "elsewhere"
                )
                continue
            fill(sheet, name + unit * long_, y, unit * (10 - long_), 28, "waits")
            x = name + unit * (long_ + 10) / 2
            sheet.words(x, y + 19, "waits in all_reduce", "middle")
        sheet.words(width, 16, "timeout: these ranks complain", "end", bold=True)
        y = 26 + 36 * num + 18
        sheet.words(name, y, f"the stack that helps is rank {lost}'s", bold=True)
        return sheet

    others = ", ".join(str(rank) for rank in range(num) if rank != lost)
    return plate(
        "The ranks that complain did nothing wrong: look for the one that is missing",
        f"{num} ranks over time. Ranks {others} work, and then wait in an all_reduce "
        f"until the timeout. Rank {lost} never calls it.",
        draw,
    )


def stacks(given: str) -> Picture:
    """Draw what the stacks of all ranks may look like, and what that means.

    Args:
        given: the number of ranks.
    """
    num = int(given)
    call, other, own = "all_reduce", "broadcast", "data.py"
    cases = (
        ("one rank is elsewhere", [call, own] + [call] * (num - 2), "it is missing"),
        (
            "different calls",
            [call, other] + [call, other] * (num // 2 - 1),
            "wrong order",
        ),
        ("the same send or recv", ["recv"] * num, "swap one side"),
        ("the same call", [call] * num, "go on with 3"),
    )

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 0)
        inside = wide(sheet)
        left, end = (176, 128) if inside else (0, 0)
        cell = (width - left - end) / num
        for rank in range(num):
            x = left + cell * (rank + 0.5)
            sheet.words(x, 15, f"rank {rank}", "middle", bold=True)
        y = 26.0
        for name, calls, advice in cases:
            if inside:
                sheet.words(0, y + 23, name)
                sheet.words(width, y + 23, advice, "end", bold=True)
            else:
                sheet.words(0, y + 15, f"{name}: {advice}")
                y += 22
            for rank, what in enumerate(calls):
                # Whoever is in a collective waits; the one elsewhere has its own hue.
                place = (left + cell * rank + 2, y, cell - 4, 36)
                fill(sheet, *place, "plain" if what == own else "waits", rank)
                sheet.words(place[0] + place[2] / 2, y + 23, what, "middle")
            y += 44
        sheet.height = y - 6
        return sheet

    said = "; ".join(
        f"{name} ({', '.join(calls)}): {advice}" for name, calls, advice in cases
    )
    return plate(
        "Compare the stacks of all ranks: four patterns, four answers",
        f"What {num} ranks are in. {said}.",
        draw,
    )


def behind(said: str) -> Picture:
    """Draw the numbers of the collectives that each rank has called last.

    Args:
        said: what the flight recorder's tool prints of a hang.
    """
    line = read(
        said,
        r"collective (\d+): rank (\d+) is behind \(last: (\d+)\); rank (\d+) began",
    )[0]
    number, slow, low, other = map(int, line.groups())
    title = claim(
        low < number, f"Rank {slow} is behind: it never called collective {number}"
    )
    last = {other: number, slow: low}

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 30 + 36 * len(last))
        # Three collectives that both have called are enough.
        name, first = 60, max(0, low - 3)
        num = number - first
        cell = (width - name) / num
        sheet.words(name, 16, "numbers of the collectives that it called")
        for place, rank in enumerate(sorted(last)):
            y = 26 + 36 * place
            sheet.words(0, y + 19, f"rank {rank}", bold=rank == slow)
            for i in range(num):
                box = (name + cell * i + 1, y, cell - 3, 28)
                called = first + 1 + i <= last[rank]
                open_ = called and first + 1 + i > low
                kind = "waits" if open_ else "plain" if called else "empty"
                fill(sheet, *box, kind, rank)
                text = (
                    f"{first + 1 + i}"
                    if called
                    else "not called"
                    if wide(sheet)
                    else "never"
                )
                text = f"{text}: waits" if open_ and wide(sheet) else text
                sheet.words(box[0] + cell / 2, y + 19, text, "middle")
        return sheet

    alt = "; ".join(
        f"rank {rank} has called {n} collectives" for rank, n in last.items()
    )
    return plate(title, f"{alt}. Rank {other} waits in number {number}.", draw)


def compared(given: str) -> Picture:
    """Draw the gradients that the guard compares, in the page's example.

    Args:
        given: the gradients of each rank's samples, such as ``10, 30 40 60``.
    """
    samples = [[float(x) for x in part.split()] for part in given.split(",")]
    own = [sum(part) / len(part) for part in samples]
    mean = sum(own) / len(own)
    union = sum(map(sum, samples)) / sum(map(len, samples))
    rows = [
        Row(
            f"rank {r}'s own: the mean of {len(part)}",
            [(own[r], "plain")],
            f"{own[r]:.3g}",
            r,
        )
        for r, part in enumerate(samples)
    ]
    # In the page's example: 10, 43.3, 26.7 and 35.
    rows.append(Row("DDP's mean of both", [(mean, "strong")], f"{mean:.3g}"))
    rows.append(
        Row("one process with all samples", [(union, "strong")], f"{union:.3g}")
    )
    alt = "Gradients: " + "; ".join(f"{row.name} {row.said}" for row in rows)
    return plate(
        f"DDP's mean is right for the ranks, and wrong for the samples: {mean:.3g}, "
        f"not {union:.3g}",
        alt,
        lambda width: bars(width, rows, max([*own, union]), 250, 60),
    )


def equal() -> Picture:
    """Draw the three statements: weights, gradients, and one process."""
    steps = (
        ("weights", "w", "w", "equal on all ranks"),
        ("own gradients", "g0", "g1", "different: other samples"),
        ("after DDP", "mean", "mean", "the mean of g0 and g1"),
    )

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 0)
        inside = wide(sheet)
        name = 130 if inside else 0
        note = 210 if inside else 0
        room = (width - name - note) / 2
        for rank in range(2):
            x = name + room * (rank + 0.5)
            sheet.words(x, 16, f"rank {rank}", "middle", bold=True)
        y = 26
        for place, (what, left, right, said) in enumerate(steps):
            if inside:
                sheet.words(0, y + 25, what)
                sheet.words(name + 2 * room + 8, y + 25, said)
            else:
                sheet.words(0, y + 14, f"{what}: {said}")
                y += 22
            for rank, text in enumerate((left, right)):
                place_ = (name + room * rank + 4, y, room - 8 - 16, 40)
                both = place == 2
                how = {"rank": None if both else rank, "strong": 0.06 if both else 0.3}
                sheet.box(*place_, text, **how)
                for i in range(2) if both else ():
                    half = (room - 24) / 2
                    fill(sheet, place_[0] + half * i, y + 33, half, 7, "strong", i)
            # Own gradients are compared with nothing: they have to differ.
            sign = "≠" if place == 1 else "="
            number = {0: "1", 2: "2"}.get(place)
            middle = name + room - 10
            if number:
                sheet.badge(middle, y + 20, number)
            else:
                sheet.words(middle, y + 25, sign, "middle", bold=True, size=18)
            y += 54
        x = name + room - 10
        sheet.arrow(f"{x:.4g},{y - 12} {x:.4g},{y + 16}", both=True)
        sheet.badge(x + 24, y + 2, "3")
        sheet.box(name + 4, y + 20, 2 * room - 24, 40, "one process, all samples: g")
        if inside:
            sheet.words(name + 2 * room + 8, y + 45, "must be equal to the mean")
        sheet.height = y + 64
        return sheet

    return plate(
        "Three comparisons find most silent mistakes",
        "1: both ranks hold equal weights w. Their own gradients g0 and g1 differ. 2: "
        "after DDP both hold the mean of g0 and g1. 3: one process with all samples "
        "gets a gradient g, which must be equal to that mean.",
        draw,
    )
