"""Pictures of chapter 9: workers, lanes, buffers, seeds, padding, unequal work."""

import random
from itertools import pairwise

from allranks.base.picture import Picture
from allranks.openings.sheet import LINE, MUTED, Sheet
from allranks.pictures.chart import (
    BAR,
    Row,
    bars,
    claim,
    fill,
    key,
    percent,
    plate,
    read,
    rule,
    wide,
)

SHARDS, LANES = 24, 8  # as in scripts/ch9_data.py
CLASSES, EACH, BUFFERS = 4, 64, (8, 64)  # of the shuffled file


def workers(output: str) -> Picture:
    """Draw how long a step takes with each number of workers, and who waits."""
    lines = read(
        output, r"(read|decode), (\d+) workers: .*took (\d+) ms, waited (\d+)%", 6
    )
    rows, waits = [], {}
    for line in lines:
        kind, num, took = line[1], int(line[2]), int(line[3])
        waits[kind, num] = share = int(line[4])
        parts = [(took * (100 - share) / 100, "plain"), (took * share / 100, "waits")]
        rows.append(Row(f"{kind}, {num} workers", parts, f"{took} ms, waits {share} %"))
    title = claim(
        waits["read", 2] < 20 < 35 < waits["decode", 2],
        "Two workers that read end the wait; two that compute, on one core, do not",
    )
    most = max(float(line[3]) for line in lines)
    alt = "Bars of a step's length: " + "; ".join(f"{r.name}: {r.said}" for r in rows)
    legend = [("plain", "the model computes"), ("waits", "waits for a batch")]
    return plate(
        title, alt, lambda width: bars(width, rows, most, 150, 170, legend=legend)
    )


def dealt(key_: str) -> list[list[int]]:
    """Return the shards of each lane, by number, as the chapter's ``deal`` does.

    >>> len(dealt("0 1")), len(dealt("0 1")[0])
    (8, 3)
    """
    shards = list(range(SHARDS))
    random.Random(key_).shuffle(shards)
    return [shards[lane::LANES] for lane in range(LANES)]


def reader(lane: int, world_size: int) -> int:
    """Return the rank that reads a lane.

    >>> [reader(lane, 3) for lane in range(8)]
    [0, 1, 2, 0, 1, 2, 0, 1]
    """
    return lane % world_size


def lanes() -> Picture:
    """Draw which shards are in which lane, and who reads it on 2, 3 and 4 ranks."""
    dealt_, sizes = dealt("0 1"), (2, 3, 4)

    def draw(width: int) -> Sheet:
        sheet, high = Sheet(width, 34 + 32 * LANES), 32
        cell, name = (42, 64) if wide(sheet) else (34, 56)
        # Behind the three shards of a lane stand its readers.
        first = name + 3 * cell + (60 if wide(sheet) else 14)
        room = (width - first) / len(sizes)
        sheet.words(name, 18, "its shards")
        for place, size in enumerate(sizes):
            x = first + room * (place + 0.5)
            sheet.words(x, 18, f"{size} ranks", "middle", bold=wide(sheet))
        for lane, shards in enumerate(dealt_):
            y = 30 + high * lane
            sheet.words(0, y + 20, f"lane {lane}", bold=True)
            for i, shard in enumerate(shards):
                x = name + cell * i
                fill(sheet, x, y + 2, cell - 4, high - 6, "faint")
                sheet.words(x + cell / 2 - 2, y + 20, f"{shard}", "middle")
            for place, size in enumerate(sizes):
                x, rank = first + room * place + 4, reader(lane, size)
                text = f"rank {rank}" if wide(sheet) else f"{rank}"
                how = {"rank": rank, "strong": 0.3, "bold": False}
                sheet.box(x, y + 2, room - 8, high - 6, text, **how)
        return sheet

    said = "; ".join(
        f"lane {lane} has shards {', '.join(map(str, shards))}"
        for lane, shards in enumerate(dealt_)
    )
    who = "; ".join(
        f"on {size} ranks, lanes 0 to {LANES - 1} are read by ranks "
        + ", ".join(str(reader(lane, size)) for lane in range(LANES))
        for size in sizes
    )
    return plate(
        "What is in a lane never depends on who reads it",
        f"A row for each of {LANES} lanes: {said}. Beside it, who reads it: {who}.",
        draw,
    )


def shuffled(num: int, buffer: int, seed: int = 0) -> list[int]:
    """Return the order in which a shuffle buffer hands out the numbers from 0 to num.

    >>> shuffled(5, 1)
    [0, 1, 2, 3, 4]
    """
    rng, rest, found = random.Random(seed), iter(range(num)), []
    held = [next(rest) for _ in range(buffer)]
    while held:
        found.append(held.pop(rng.randrange(len(held))))
        if (following := next(rest, None)) is not None:
            held.append(following)
    return found


def mixed(order: list[int]) -> int:
    """Return the longest stretch in which the handed-out samples are of one class."""
    longest = run = 1
    for one, two in pairwise(order):
        run = run + 1 if one // EACH == two // EACH else 1
        longest = max(longest, run)
    return longest


def buffers() -> Picture:
    """Draw a sorted file as a shuffle buffer hands it out, for several buffers."""
    num = CLASSES * EACH
    rows = [("in the file", list(range(num)))]
    rows += [(f"buffer of {size}", shuffled(num, size)) for size in BUFFERS]
    rows += [(f"buffer of {num}", shuffled(num, num))]
    runs = [mixed(order) for _, order in rows]
    title = claim(
        runs[1] > EACH / 2 > 20 > runs[-1],
        f"With a buffer of {BUFFERS[0]} you train on one class at a time",
    )
    depths = [0.06, 0.26, 0.55, 0.95]

    def draw(width: int) -> Sheet:
        sheet, high = Sheet(width, 24 + 56 * len(rows)), 26
        each = width / CLASSES / EACH
        for kind in range(CLASSES):
            x = (kind + 0.5) * EACH * each
            sheet.words(x, 14, f"class {kind}", "middle")
        for place, (name, order) in enumerate(rows):
            y = 22 + 56 * place
            for kind, depth in enumerate(depths):
                # Neighbors of one class are one box, or there would be hundreds.
                path, start = "", None
                for i, sample in enumerate([*order, -EACH]):
                    inside = sample // EACH == kind
                    if inside and start is None:
                        start = i
                    if not inside and start is not None:
                        path += f"M{start * each:.4g} {y}h{(i - start) * each:.4g}"
                        path += f"v{high}h-{(i - start) * each:.4g}z"
                        start = None
                style = f"fill:{MUTED};fill-opacity:{depth}"
                sheet.parts.append(f'<path d="{path}" style="{style}"/>')
            frame = f'x="0" y="{y}" width="{width}" height="{high}"'
            style = f"fill:none;stroke:{MUTED}"
            sheet.parts.append(f'<rect {frame} style="{style}"/>')
            sheet.words(0, y + high + 17, name, bold=True)
            of = " of one class" if wide(sheet) else ""
            said = f"longest run{of}: {runs[place]}"
            sheet.words(width, y + high + 17, said, "end")
        return sheet

    said = "; ".join(
        f"{name}: up to {run} samples of one class in a row"
        for (name, _), run in zip(rows, runs, strict=True)
    )
    alt = (
        f"{num} samples in {CLASSES} classes, sorted by class, in four strips. {said}."
    )
    return plate(title, alt, draw)


def seeds(output: str) -> Picture:
    """Draw how many of all drawn numbers differ, for each way to seed."""
    pattern = r"\] (?!before)(.+): (\d+) of (\d+) different, (un)?changed"
    lines = read(output, pattern, 4)
    good = [line for line in lines if line[2] == line[3] and line[4]]
    title = claim(
        len(good) == 1 and good[0] == lines[-1],
        f"Only a {lines[-1][1]} draws {lines[-1][3]} different numbers, and the same "
        "ones without workers",
    )
    num = int(lines[0][3])

    def draw(width: int) -> Sheet:
        high = 56 if width > 400 else 76
        sheet = Sheet(width, 26 + high * len(lines))
        key(sheet, 0, [("plain", "drawn once"), ("wrong", "drawn before")])
        # On a phone the cells stand in two rows.
        per_row = num if wide(sheet) else num // 2
        cell = width / per_row
        for place, line in enumerate(lines):
            y, different = 26 + high * place, int(line[2])
            word = "the same" if line[4] else "others"
            said = f"{'without' if wide(sheet) else 'no'} workers: {word}"
            sheet.words(0, y + 15, line[1], bold=True)
            sheet.words(width, y + 15, said, "end")
            for i in range(num):
                kind = "plain" if i < different else "wrong"
                x, row = cell * (i % per_row), i // per_row
                fill(sheet, x + 1, y + 22 + 21 * row, cell - 3, 18, kind)
        return sheet

    said = "; ".join(
        f"{line[1]}: {line[2]} of {line[3]} differ, and without workers they are "
        + ("the same" if line[4] else "others")
        for line in lines
    )
    return plate(title, f"A cell for each of {num} numbers. {said}.", draw)


def resumed(output: str) -> Picture:
    """Draw the steps of a run that was stopped, and of the one that resumed it."""
    stop = int(read(output, r"--stop (\d+)")[0][1])
    lines = read(output, r"\[rank 0/(\d+)\] epoch=1 step=(\d+): (\d+) windows", 4)
    before, after = (
        [line for line in lines if line[1] == size]
        for size in (lines[0][1], lines[-1][1])
    )
    saved = [int(line[2]) for line in before]
    last, whole = int(after[-1][2]), int(after[-1][3])
    again = read(output, r"counts are (1) x")
    title = claim(
        saved[-1] < stop < last and bool(again),
        f"Steps {saved[-1] + 1} to {stop} run twice, and count once",
    )
    parts = ((int(before[0][1]), 0, stop), (int(after[0][1]), saved[-1], last))

    def draw(width: int) -> Sheet:
        name = 66 if wide(Sheet(width, 0)) else 58
        sheet, scale, y = Sheet(width, 0), (width - name - 12) / last, 26
        for size, begin, end in parts:
            for rank in range(size):
                sheet.words(0, y + 17, f"rank {rank}")
                # Solid is what counts, dashed what was lost.
                kept = (begin, saved[-1]) if begin == 0 else (begin, end)
                x = name + scale * kept[0]
                fill(sheet, x, y, scale * (kept[1] - kept[0]), BAR, "plain", rank)
                if begin == 0:
                    x = name + scale * kept[1]
                    fill(sheet, x, y, scale * (end - kept[1]), BAR, "empty", rank)
                y += BAR + 6
            if begin == 0:
                x = name + scale * end
                rule(sheet, f"M{x:.4g} 22V{y + 4}", color="currentColor", thick=2)
                sheet.wrong(x, 16, f"stopped after {end}", "middle")
                y += 18
        x = name + scale * saved[-1]
        rule(sheet, f"M{x:.4g} 24V{y + 2}", "5 4", "currentColor")
        for step in (0, *saved, last):
            x = name + scale * step
            side = {0: "start", last: "end"}.get(step, "middle")
            sheet.words(x, y + 20, f"{step}", side)
        sheet.words(0, y + 20, "step")
        down = 42 if wide(sheet) else 62
        sheet.words(x, y + down, f"{whole:,} windows learned, each once", "end")
        x = name + scale * saved[-1]
        sheet.words(x, y + 20 + LINE, "saved", "middle", bold=True)
        sheet.height = y + down + 8
        return sheet

    alt = (
        f"{parts[0][0]} ranks make steps 1 to {stop} and save after steps "
        f"{' and '.join(map(str, saved))}; what they learned after step {saved[-1]} is "
        f"lost. {parts[1][0]} ranks go on from step {saved[-1]} to {last}, and have "
        f"learned {whole} windows, each once."
    )
    return plate(title, alt, draw)


def cuts(output: str) -> Picture:
    """Draw a tar that is cut off, and what a reader notices."""
    pattern = r"tar cut in a (?:(header)|[\w' ]+), (alone|with an index): (.+)"
    said = {(m[1] or "file", m[2]): m[3] for m in read(output, pattern, 4)}
    if len(said) < 4:
        raise ValueError(
            "tar cut in a file or a header, alone or with an index: 4 lines"
        )
    left = said["header", "alone"]
    title = claim(
        left.isdigit() and not said["file", "alone"].isdigit(),
        f"A cut inside a header looks like the end: {left} samples, and no error",
    )
    blocks = ("header", "text", "header", "class")

    def draw(width: int) -> Sheet:
        sheet, y = Sheet(width, 0), 0
        for where in ("file", "header"):
            name = "a file's contents" if where == "file" else "a header"
            sheet.words(0, y + 16, f"cut inside {name}", bold=True)
            y += 26
            unit = min(width, 560) / 8
            # Two samples of two files: header, contents, header, contents.
            at = 0.0
            end = unit * (4 + 1.6 if where == "file" else 4.5)
            for block in range(8):
                name = blocks[block % 4]
                long_ = unit * {"header": 0.8, "text": 1.6, "class": 0.8}[name]
                inside = max(0.0, min(at + long_, end) - at)
                kind = "strong" if name == "header" else "faint"
                if inside:
                    fill(sheet, at, y, inside, 30, kind)
                if inside < long_:
                    fill(sheet, at + inside, y, long_ - inside, 30, "empty")
                at += long_
            rule(sheet, f"M{end:.4g} {y - 6}v42", color="currentColor", thick=2.5)
            for how in ("alone", "with an index"):
                y += 0 if how == "alone" else LINE
                words, wrong = said[where, how], said[where, how].isdigit()
                sheet.words(0, y + 52, f"{how}:")
                if wrong:
                    sheet.wrong(110, y + 52, f"{words} samples, no error")
                else:
                    if not wide(sheet):  # too long to stand beside its name
                        y += LINE
                    sheet.words(114 if wide(sheet) else 14, y + 52, words)
            y += 74
        y += 4
        fill(sheet, 0, y, 20, 14, "strong")
        sheet.words(26, y + 12, "header")
        fill(sheet, 106, y, 20, 14, "faint")
        sheet.words(132, y + 12, "contents")
        sheet.height = y + 22
        return sheet

    alt = "A tar is a row of headers and contents. " + "; ".join(
        f"cut inside a {where}, read {how}: {text}"
        for (where, how), text in said.items()
    )
    return plate(title, alt, draw)


def uneven(output: str) -> Picture:
    """Draw how far each way to even out unequal ranks is from one process."""
    pattern = r"\] (.+): (\d+) steps, (\d+) samples, weights off by ([\d.]+)"
    lines = read(output, pattern, 5)
    off = {line[1]: float(line[4]) for line in lines}
    exact = [name for name, value in off.items() if value < 0.001]
    title = claim(
        exact == ["pad"], "Only padding ends with the weights of a single process"
    )
    rows = [
        Row(line[1], [(off[line[1]], "plain")], f"{line[4]}, {line[2]} steps")
        for line in lines
    ]
    alt = "How far the weights are off: " + "; ".join(
        f"{name} {value}" for name, value in off.items()
    )
    return plate(
        title, alt, lambda width: bars(width, rows, max(off.values()), 240, 130)
    )


def padding(output: str) -> Picture:
    """Draw the share of padding in each kind of batch."""
    said = r"^(.+): ([\d.]+) of the positions are padding"
    lines = read(output, said, 3)
    share = {line[1]: float(line[2]) for line in lines}
    first, *others = share
    title = claim(
        share[first] > 0.3 > 0.15 > max(share[name] for name in others),
        f"{percent(share[first])} of the positions are padding; in buckets or packed "
        "rows, hardly any",
    )
    rows = [
        Row(name, [(1 - value, "strong"), (value, "empty")], percent(value))
        for name, value in share.items()
    ]
    legend = [("strong", "text"), ("empty", "padding")]
    alt = "Shares of padding: " + "; ".join(f"{r.name} {r.said}" for r in rows)
    return plate(title, alt, lambda width: bars(width, rows, 1, 130, 60, legend=legend))


def packed(given: str) -> Picture:
    """Draw who may look at whom in a packed row, with and without a mask.

    Args:
        given: the lengths of the sentences, such as ``2 3``.
    """
    lengths = [int(text) for text in given.split()]
    owner = [i for i, length in enumerate(lengths) for _ in range(length)]
    places = [i for length in lengths for i in range(length)]
    num, letters = len(owner), "ABCDEF"
    leaks = sum(owner[i] != owner[j] for i in range(num) for j in range(i))

    def grid(sheet: Sheet, x: float, y: float, masked: bool) -> None:
        cell = 34
        what = "with the mask" if masked else "without it"
        sheet.words(x + 40, y, what, bold=True)
        for i in range(num):
            name = f"{letters[owner[i]]}{places[i] + 1}"
            sheet.words(x, y + 52 + cell * i, name)
            sheet.words(x + 40 + cell * (i + 0.5), y + 22, name, "middle")
            for j in range(num):
                place = (x + 40 + cell * j, y + 30 + cell * i, cell - 4, cell - 4)
                # A token never looks ahead, and with the mask at no other sentence.
                own = owner[i] == owner[j]
                if j > i or (masked and not own):
                    fill(sheet, *place, "empty")
                elif own:
                    fill(sheet, *place, ("plain", "strong")[owner[i] % 2])
                else:
                    fill(sheet, *place, "wrong")

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 0)
        grid(sheet, 0, 16, True)
        right, down = (320, 16) if wide(sheet) else (0, 256)
        grid(sheet, right, down, False)
        sheet.height = down + 30 + 34 * num
        if wide(sheet):
            x = 570
            for i, (kind, text) in enumerate(
                [
                    ("plain", "sentence A"),
                    ("strong", "sentence B"),
                    ("wrong", "B reads A"),
                ]
            ):
                fill(sheet, x, 60 + 28 * i, 20, 14, kind)
                sheet.words(x + 28, 72 + 28 * i, text)
            sheet.words(x, 160, "position ids")
            sheet.words(x, 160 + LINE, ", ".join(map(str, places)), bold=True)
        else:
            y = sheet.height + 8
            key(sheet, 0, [("plain", "A"), ("strong", "B"), ("wrong", "B reads A")], y)
            sheet.words(0, y + 38, f"position ids: {', '.join(map(str, places))}")
            sheet.height = y + 46
        return sheet

    alt = (
        f"Two grids of {num} tokens, in sentences of "
        f"{' and '.join(map(str, lengths))}. "
        "A row's filled cells are the tokens that its token may look at. With the mask "
        "these are itself and the tokens before it in its own sentence; without it, "
        f"{leaks} cells more: tokens of the sentence before. Position ids: {places}."
    )
    return plate("Each sentence sees itself, and no other", alt, draw)


def weighed(given: str) -> Picture:
    """Draw two means of a loss: over all tokens, and over micro-batches.

    Args:
        given: tokens and mean loss of each micro-batch, such as ``40 4, 400 2``.
    """
    parts = [[float(x) for x in part.split()] for part in given.split(",")]
    total = sum(tokens for tokens, _ in parts)
    right = sum(tokens * loss for tokens, loss in parts) / total
    means = sum(loss for _, loss in parts) / len(parts)
    most = max(loss for _, loss in parts)

    def draw(width: int) -> Sheet:
        sheet, high, left = Sheet(width, 250), 170, 30
        x, base = left, 200.0
        room = width - left - (210 if wide(sheet) else 0)
        for number, (tokens, loss) in enumerate(parts):
            # Areas are tokens times mean loss: the sums that a mean divides.
            size = room * tokens / total
            tall = high * loss / most
            fill(sheet, x, base - tall, size - 2, tall, ("strong", "plain")[number % 2])
            side = "start" if number == 0 else "middle"
            sheet.words(
                x if number == 0 else x + size / 2, base + 20, f"{tokens:g}", side
            )
            x += size
        sheet.words(left, base + 20 + LINE, "tokens (width) × mean loss (height)")
        for loss in range(int(most) + 1):
            y = base - high * loss / most
            sheet.words(left - 10, y + 5, f"{loss}", "end")
        for value, kind, text in (
            (right, "", f"over all tokens: {right:.2f}"),
            (means, "wrong", f"mean of the means: {means:g}"),
        ):
            y = base - high * value / most
            dash = "6 4" if kind else "none"
            rule(
                sheet, f"M{left:.4g} {y:.4g}H{left + room:.4g}", dash, "currentColor", 2
            )
            x, side = (left + room + 8, "start") if wide(sheet) else (width, "end")
            y += 5 if wide(sheet) else -8
            if kind:
                sheet.wrong(x, y, text, side)
            else:
                sheet.words(x, y, text, side, bold=True)
        return sheet

    said = "; ".join(
        f"{tokens:g} tokens with a loss of {loss:g}" for tokens, loss in parts
    )
    few = min(tokens for tokens, _ in parts)
    times = max(tokens for tokens, _ in parts) / few
    title = claim(
        means > right,
        f"The mean of the means counts a token of the short part {times:g} times",
    )
    alt = (
        f"Areas of tokens by loss: {said}. The mean over all tokens is {right:.2f}, "
        f"the mean of the means {means:g}."
    )
    return plate(title, alt, draw)


def straggler(given: str) -> Picture:
    """Draw a step of ranks with unequal work.

    Args:
        given: each rank's work, such as ``10 8 8 6``.
    """
    work = [float(text) for text in given.split()]
    most = max(work)
    busy = sum(work) / most / len(work)
    # The step ends with its slowest rank, for which the others wait.
    rows = [
        Row(
            f"rank {rank}",
            [(w, "plain"), (most - w, "waits")],
            f"{w:g} of {most:g}",
            rank,
        )
        for rank, w in enumerate(work)
    ]
    legend = [("plain", "works"), ("waits", "waits for the slowest rank")]
    alt = (
        f"A step of {len(work)} ranks: "
        + "; ".join(
            f"rank {rank} works {w:g} and waits {most - w:g}"
            for rank, w in enumerate(work)
        )
        + f". They are busy {percent(busy)} of the time."
    )
    title = f"The step takes {most:g}, as its slowest rank does: busy {percent(busy)}"
    return plate(
        title, alt, lambda width: bars(width, rows, most, 70, 76, legend=legend)
    )


def balanced(output: str) -> Picture:
    """Draw how busy ranks are with each way to deal sentences."""
    pattern = r"\] (.+): busy ([\d.]+), with a slow rank ([\d.]+)"
    lines = read(output, pattern, 4)
    slow = {line[1]: float(line[3]) for line in lines}
    even = {line[1]: float(line[2]) for line in lines}
    title = claim(
        even["longest first"] > 0.95 and slow["longest first"] < 0.7 < slow["by speed"],
        "Longest first balances equal ranks; a slow rank needs its speed to count",
    )
    rows = []
    for name in even:
        for text, value in ((name, even[name]), ("… with a slow rank", slow[name])):
            parts = [(value, "plain"), (1 - value, "waits")]
            rows.append(Row(text, parts, f"{100 * value:.1f} %"))
    legend = [("plain", "ranks work"), ("waits", "ranks wait")]
    alt = "Shares of the ranks' time in which they work: " + "; ".join(
        f"{name} {even[name]:.3f}, with a slow rank {slow[name]:.3f}" for name in even
    )
    return plate(title, alt, lambda width: bars(width, rows, 1, 170, 70, legend=legend))
