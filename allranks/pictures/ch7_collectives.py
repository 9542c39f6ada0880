"""Pictures of chapter 7: messages, rings, trees and halving, nodes, segments, fits."""

from collections.abc import Sequence
from math import ceil, log2, log10

from allranks.base.picture import Picture
from allranks.base.svg import RANK_COLORS
from allranks.base.units import amount
from allranks.openings.sheet import MUTED, Sheet
from allranks.pictures.chart import (
    FEW,
    Axis,
    Plot,
    Row,
    bars,
    claim,
    dot,
    fill,
    plate,
    read,
    rule,
    wide,
)
from allranks.topics.collectives.sums import (
    Held,
    Steps,
    Transfer,
    before,
    schedule,
    simulate,
)

SIZES = (1, 1_000, 1_000_000)  # bytes of the messages that the text computes


def message(given: str) -> Picture:
    """Draw the time of a message over its size.

    Args:
        given: α in µs and B in GB/s, such as ``50 0.125``.
    """
    alpha, rate = (float(text) for text in given.split())
    alpha, rate = alpha * 1e-6, rate * 1e9
    bend = alpha * rate

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 296)
        low, high = 0, 7
        share = lambda b: (log10(b) - low) / (high - low)  # noqa: E731
        ticks = [(1, "1 B"), (1e3, "1 kB"), (1e6, "1 MB")]
        y_share = lambda t: (log10(t) + 5) / 4.2  # noqa: E731
        marks = [(1e-5, "10 µs"), (1e-4, "100 µs"), (1e-3, "1 ms"), (1e-2, "10 ms")]
        plot = Plot(
            sheet,
            Axis(ticks, share, "bytes in the message"),
            Axis(marks, y_share, "time of the message"),
            200,
            right=24,
            left=52,
        )
        points = [10 ** (low + (high - low) * i / 60) for i in range(61)]
        x = plot.at(bend, 1e-5)[0]
        place = (plot.left, plot.top, x - plot.left, plot.bottom - plot.top)
        fill(sheet, *place, "faint")
        plot.line([(b, alpha + b / rate) for b in points], dots=False, thick=2.5)
        plot.line([(b, alpha) for b in points], dots=False, dash="2 4", thick=1.5)
        # The line of the bytes alone, from where it enters the field.
        start = [b for b in points if b / rate > 1e-5]
        plot.line([(b, b / rate) for b in start], dots=False, dash="7 4", thick=1.5)
        for size in SIZES:
            px, py = plot.at(size, alpha + size / rate)
            dot(sheet, px, py)
            text = amount(alpha + size / rate, "s")
            last = size == SIZES[-1]
            first = size == SIZES[0]
            side = ("start", px + 7) if first else ("end", px - 4 - 6 * last)
            sheet.words(side[1], py - 10, text, side[0], bold=True)
        you = "you pay " if wide(sheet) else ""
        sheet.words(plot.left + 8, plot.top + 20, f"{you}for messages", bold=True)
        words = f"{you}for bytes"
        sheet.words(x + 8, plot.bottom - 12, words, bold=True)
        sheet.words(x, plot.top - 8, amount(bend, "B"), "middle")
        return sheet

    said = "; ".join(
        f"{amount(s, 'B')}: {amount(alpha + s / rate, 's')}" for s in SIZES
    )
    return plate(
        f"Below {amount(bend, 'B')} a message takes hardly longer than an empty one",
        f"Time of a message by its size, on logarithmic axes: {said}. The dotted line "
        f"is the latency, {amount(alpha, 's')}, the dashed one the bytes alone; they "
        f"meet at {amount(bend, 'B')}.",
        draw,
    )


def naive(given: str) -> Picture:
    """Draw the messages of the naive plan, one after the other.

    Args:
        given: the number of ranks.
    """
    num = int(given)

    def draw(width: int) -> Sheet:
        steps = 2 * (num - 1)
        name = 60
        unit = (width - name) / steps
        sheet = Sheet(width, 34 + 34 * num)
        for step in range(steps):
            x = name + unit * step
            # To rank 0 from ranks 1, 2, …; then to the same ones.
            other = step + 1 if step < num - 1 else step - num + 2
            up = step < num - 1
            for rank in range(num):
                y = 26 + 34 * rank
                kind = "travels" if rank in (0, other) else "waits"
                owner = rank if kind == "travels" else None
                fill(sheet, x + 1, y, unit - 3, 28, kind, owner)
            top, bottom = 26 + 28, 26 + 34 * other
            at = x + unit / 2
            ends = (
                f"{at:.4g},{bottom} {at:.4g},{top}"
                if up
                else f"{at:.4g},{top} {at:.4g},{bottom}"
            )
            sheet.arrow(ends, color="currentColor", thick=2)
        for rank in range(num):
            sheet.words(0, 26 + 34 * rank + 19, f"rank {rank}")
        half = name + unit * (num - 1)
        sheet.words(name, 15, "all send to rank 0" if wide(sheet) else "to rank 0")
        sheet.words(half, 15, "rank 0 sends to all" if wide(sheet) else "from rank 0")
        return sheet

    return plate(
        f"One link carries all {2 * (num - 1)} messages, and the other ranks wait",
        f"{num} ranks, {2 * (num - 1)} steps. In each of the first {num - 1}, one "
        "rank sends its tensor to rank 0; in each of the others, rank 0 sends the sum "
        "to one rank. All other ranks wait.",
        draw,
    )


def grid(
    sheet: Sheet, x: float, y: float, held: Held, num: int, cell: float, row: float = 26
) -> None:
    """Draw who holds what: rows of ranks, cells of chunks, a stripe per added rank."""
    for rank, mine in enumerate(held):
        for chunk in range(num):
            left, top = x + cell * chunk, y + row * rank
            owners = sorted(mine.get(chunk, ()))
            box = (left + 1, top + 1, cell - 3, row - 4)
            if not owners:
                fill(sheet, *box, "empty")
                continue
            stripe = (cell - 3) / len(owners)
            for i, owner in enumerate(owners):
                place = f'x="{left + 1 + stripe * i:.4g}" y="{top + 1}"'
                size = f'width="{stripe:.4g}" height="{row - 4}"'
                style = f"fill:{RANK_COLORS[owner]};fill-opacity:0.6"
                sheet.parts.append(f'<rect {place} {size} style="{style}"/>')
            whole = len(owners) == len(held)
            style = f"fill:none;stroke:{'currentColor' if whole else MUTED}"
            style += f";stroke-width:{2 if whole else 0.7}"
            place = f'x="{box[0]:.4g}" y="{box[1]:.4g}" width="{box[2]:.4g}"'
            sheet.parts.append(f'<rect {place} height="{box[3]}" style="{style}"/>')


def states(
    width: int,
    all_held: Sequence[Held],
    names: Sequence[str],
    chunks: int,
    per_row: int,
) -> Sheet:
    """Draw the states of an algorithm one after the other, in rows."""
    num, name = len(all_held[0]), 54
    sheet = Sheet(width, 0)
    room = (width - name) / per_row
    cell = min(26, (room - 14) / chunks)
    high = 26 * num + 40
    for place, (held, text) in enumerate(zip(all_held, names, strict=True)):
        x, y = name + room * (place % per_row), high * (place // per_row)
        sheet.words(x, y + 15, text, bold=not place)
        grid(sheet, x, y + 24, held, chunks, cell)
        if place % per_row == 0:
            for rank in range(num):
                sheet.words(0, y + 24 + 26 * rank + 18, f"rank {rank}", size=FEW)
    sheet.height = high * ceil(len(all_held) / per_row) - 8
    return sheet


def around(num: int) -> Steps:
    """List who sends which chunk to whom in a ring, as the chapter's code does.

    >>> around(2)[0][0]
    Transfer(source=0, target=1, chunk=0, op='reduce')
    """
    return [
        [
            Transfer(
                p,
                (p + 1) % num,
                (p - step) % num,
                "reduce" if step < num - 1 else "copy",
            )
            for p in range(num)
        ]
        for step in range(2 * num - 2)
    ]


def ring(given: str) -> Picture:
    """Draw who holds which sums after each step of a ring.

    Args:
        given: the number of ranks.
    """
    num = int(given)
    held = simulate(around(num), before("all_reduce", num))
    names = ["before", *(f"step {step}" for step in range(1, len(held)))]

    def draw(width: int) -> Sheet:
        # All states stand in one row if they fit.
        per_row = len(held) if width > 400 and num <= 4 else 2
        return states(width, held, names, num, per_row)

    done = num - 1
    return plate(
        f"A ring of {num}: after {done} steps each rank has one whole sum, after "
        f"{2 * done} it has all",
        f"{len(held)} states of {num} ranks with {num} chunks each. A chunk has a "
        f"stripe for each rank that was added to it. In steps 1 to {done} each rank "
        "adds the chunk that arrives; then one chunk per rank is complete. In steps "
        f"{done + 1} to {2 * done} complete chunks are copied, until all are complete "
        "everywhere.",
        draw,
    )


def pairs_of_tree(num: int) -> list[list[tuple[int, int]]]:
    """Return (source, target) in each step of a tree's way up.

    >>> pairs_of_tree(4)
    [[(1, 0), (3, 2)], [(2, 0)]]
    """
    steps = schedule("all_reduce", "tree", num)
    up = [sorted({(t.source, t.target) for t in step}) for step in steps]
    return up[: len(up) // 2]


def tree(given: str) -> Picture:
    """Draw the tree: who sends to whom, step by step, up and down again.

    Args:
        given: the number of ranks.
    """
    num = int(given)
    up = pairs_of_tree(num)
    down = [[(b, a) for a, b in step] for step in reversed(up)]
    steps = [*up, *down]

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        name = 62 if inside else 52
        cell = (width - name) / num
        sheet, high = Sheet(width, 0), 58
        box = min(66, cell - 8)
        busy = set(range(num))
        for step in range(len(steps) + 1):
            y = high * step
            for rank in range(num):
                x = name + cell * (rank + 0.5)
                whole = step > len(up) and rank in busy
                here = rank in busy
                # At the top only rank 0 has the sum.
                if step == len(up):
                    whole, here = rank == 0, rank == 0
                kind = {"rank": rank, "strong": 0.36 if whole else 0.16 if here else 0}
                text = f"rank {rank}" if inside else f"{rank}"
                place = (x - box / 2, y + 2, box, 28)
                sheet.box(*place, text, dashed=not here, bold=whole, **kind)
            if step == len(steps):
                break
            if step == len(up) - 1:
                busy = {0}
            for source, target in steps[step]:
                busy = busy - {source} if step < len(up) else busy | {target}
                a, b = (name + cell * (r + 0.5) for r in (source, target))
                sheet.arrow(f"{a:.4g},{y + 32} {b:.4g},{y + high}", thick=2.5)
            sheet.words(0, y + 51, f"step {step + 1}")
        sheet.height = high * len(steps) + 34
        return sheet

    said = "; ".join(
        f"step {i}: " + ", ".join(f"{a} to {b}" for a, b in step)
        for i, step in enumerate(steps, 1)
    )
    return plate(
        f"A tree adds up {num} tensors in {len(up)} steps, and needs {len(up)} more to "
        "send the sum",
        f"{num} ranks. {said}. Each message is the whole tensor. After step {len(up)} "
        "rank 0 has the sum; the others get it on the same ways back.",
        draw,
    )


def halve(num: int) -> list[Held]:
    """Return who holds what before and after each step of halving and doubling.

    A chunk that a rank no longer adds up is left out.

    >>> [sorted(mine) for mine in halve(4)[2]]
    [[0], [2], [1], [3]]
    """
    held = before("all_reduce", num)
    found, kept = [held], [list(range(num)) for _ in range(num)]
    hops = [1 << k for k in range((num - 1).bit_length())]
    for hop in hops:  # the halves: a rank keeps one, adds its partner's to it
        new, old = [{} for _ in range(num)], found[-1]
        halves = []
        for rank in range(num):
            half = len(kept[rank]) // 2
            upper = rank > rank ^ hop
            halves.append(kept[rank][half:] if upper else kept[rank][:half])
        kept = halves
        for rank in range(num):
            new[rank] = {c: old[rank][c] | old[rank ^ hop][c] for c in kept[rank]}
        found.append(new)
    for hop in reversed(hops):  # the same partners give each other what they have
        old = found[-1]
        found.append([old[rank] | old[rank ^ hop] for rank in range(num)])
    return found


def halving(given: str) -> Picture:
    """Draw what each rank holds after each step of halving and doubling.

    Args:
        given: the number of ranks, a power of two.
    """
    num = int(given)
    if num & (num - 1):
        raise ValueError(f"{num} ranks: halving needs a power of two")
    held = halve(num)
    steps = len(held) - 1
    # Half of the steps halve what a rank adds up, the others double it.
    names = ["before", *(f"step {step}" for step in range(1, steps + 1))]

    def draw(width: int) -> Sheet:
        return states(width, held, names, num, len(held) if width > 400 else 2)

    return plate(
        f"Halving and doubling: {num} ranks are done in {steps} steps",
        f"{len(held)} states of {num} ranks with {num} chunks. In steps 1 to "
        f"{steps // 2} each rank keeps half of its chunks and adds its partner's to "
        "them, until it has one complete chunk. In the other steps partners copy what "
        "they have, so each has twice as much after each step.",
        draw,
    )


def hierarchy(output: str) -> Picture:
    """Draw the time of a ring over all ranks beside a hierarchy's."""
    pattern = (
        r"\] (ring|hierarchical): (\d+) steps, ([\d.]+) n leave a node, ([\d.]+) n / B"
    )
    lines = read(output, pattern, 2)
    took = {line[1]: float(line[4]) for line in lines}
    left = {line[1]: line[3] for line in lines}
    title = claim(
        took["hierarchical"] < took["ring"] / 2,
        f"Adding up inside each node first takes {took['hierarchical']:g} units "
        f"instead of {took['ring']:g}",
    )
    inside = {"ring": 0.0, "hierarchical": 1.0}  # two halves of a tensor, 1/2 each
    rows = [
        Row(
            name,
            [(inside[name], "faint"), (value - inside[name], "strong")],
            f"{value:g}",
        )
        for name, value in took.items()
    ]
    legend = [("faint", "inside the nodes"), ("strong", "between them")]
    alt = "Times in units of n / B: " + "; ".join(
        f"{name} {took[name]:g}, with {left[name]} n leaving each node" for name in took
    )
    most = max(took.values())
    return plate(
        title, alt, lambda width: bars(width, rows, most, 110, 60, legend=legend)
    )


def sent(num_ranks: int, segments: int) -> list[tuple[int, int, int]]:
    """Return (step, link, segment) of a broadcast along a chain, in pieces.

    >>> sent(3, 2)
    [(0, 0, 0), (1, 0, 1), (1, 1, 0), (2, 1, 1)]
    """
    links = num_ranks - 1
    return sorted((s + link, link, s) for s in range(segments) for link in range(links))


def chain(given: str) -> Picture:
    """Draw when each link of a chain is busy, with one piece and with several.

    Args:
        given: ranks, and numbers of segments, such as ``4 1 4``.
    """
    num, _, counts = given.partition(" ")
    num, counts = int(num), [int(text) for text in counts.split()]
    ends = [(num - 2 + k) / k for k in counts]  # in units of n / B, without α

    def draw(width: int) -> Sheet:
        name = 92 if wide(Sheet(width, 0)) else 66
        sheet, y = Sheet(width, 0), 0
        unit = (width - name - 52) / max(ends)
        for k, end in zip(counts, ends, strict=True):
            pieces = "in one piece" if k == 1 else f"in {k} pieces"
            sheet.words(0, y + 15, pieces, bold=True)
            for link in range(num - 1):
                top = y + 24 + 32 * link
                text = (
                    f"rank {link} → {link + 1}"
                    if wide(sheet)
                    else f"{link} → {link + 1}"
                )
                sheet.words(0, top + 18, text)
                rule(
                    sheet,
                    f"M{name} {top + 28}H{name + unit * max(ends):.4g}",
                    thick=0.5,
                )
            # A segment takes a k-th of what the whole tensor takes.
            for step, link, segment in sent(num, k):
                x, long_ = name + unit * step / k, unit / k
                top = y + 24 + 32 * link
                fill(sheet, x + 1, top, long_ - 2, 26, "travels", link)
                if k > 1 and long_ > 20:
                    middle = x + long_ / 2
                    sheet.blank(middle - 8, top + 4, 16, 18)
                    sheet.words(middle, top + 18, f"{segment + 1}", "middle")
            x = name + unit * end
            rule(sheet, f"M{x:.4g} {y + 18}v{32 * (num - 1) + 8}", color="currentColor")
            sheet.words(x + 7, y + 24 + 32 * (num - 1) - 10, f"{end:g}", bold=True)
            y += 24 + 32 * (num - 1) + 18
        sheet.height = y - 4
        return sheet

    said = "; ".join(
        f"in {k} piece{'s' * (k > 1)}: done after {end:g} n/B"
        for k, end in zip(counts, ends, strict=True)
    )
    return plate(
        f"In {counts[-1]} pieces the links work at the same time: {ends[-1]:g} units "
        f"instead of {ends[0]:g}",
        f"When each of {num - 1} links is busy, without latency. {said}.",
        draw,
    )


def segments(output: str) -> Picture:
    """Draw the time of a broadcast over the number of its segments."""
    lines = read(output, r"\] (\d+) segments: .* ([\d.]+) n / B", 5)
    found = [(int(line[1]), float(line[2])) for line in lines]
    best = float(read(output, r"best by the formula: ([\d.]+)")[0][1])
    fastest = min(found, key=lambda one: one[1])
    title = claim(
        fastest not in (found[0], found[-1]),
        f"{fastest[0]} segments are fastest; fewer leave links idle, more pay for "
        f"latency",
    )

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 262)
        # Each number of segments is four times the one before.
        share = lambda k: log2(k) / log2(found[-1][0])  # noqa: E731
        x_axis = Axis([(k, f"{k}") for k, _ in found], share, "segments")
        most = ceil(max(t for _, t in found))
        y_axis = Axis(
            [(t, f"{t}") for t in range(0, most + 1, 2)], lambda t: t / most, "n / B"
        )
        plot = Plot(sheet, x_axis, y_axis, 180, right=40, left=34)
        x = plot.at(best, 0)[0]
        rule(sheet, f"M{x:.4g} {plot.top}V{plot.bottom}", "5 4", "currentColor")
        sheet.words(x, plot.top - 8, f"by the formula: {best:g}", "middle")
        plot.line(found, thick=2.5)
        for k, t in found:
            px, py = plot.at(k, t)
            side = "start" if k == found[0][0] else "middle"
            sheet.words(
                px + 6 * (side == "start"),
                py - 11,
                f"{t:.2f}",
                side,
                bold=k == fastest[0],
            )
        return sheet

    said = "; ".join(f"{k} segments: {t:g}" for k, t in found)
    return plate(
        title, f"Times in units of n / B: {said}. Best by formula: {best:g}.", draw
    )


def measured(output: str) -> Picture:
    """Draw measured times of an all_reduce over its size, and the two fitted lines."""
    num = r"([\d.]+)"
    line = rf"{num} us \+ {num} us per MB"
    pattern = rf"all_reduce: {line} below {num} kB, then {line}"
    a1, b1, edge, a2, b2 = map(float, read(output, pattern)[0].groups())
    lines = read(output, r"\] +(\d+) kB +([\d.]+) ms +o-*$", 10)
    found = [(int(line[1]), float(line[2])) for line in lines]
    # Sizes are in kB, slopes in µs per MB, times in ms.
    fits = {
        "small": lambda kb: (a1 + b1 * kb / 1000) / 1000,
        "large": lambda kb: (a2 + b2 * kb / 1000) / 1000,
    }
    title = claim(
        found[-1][1] > 5 * found[0][1],
        f"Flat below {edge:.0f} kB, then in proportion to the bytes",
    )

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 300)
        share = lambda kb: log2(kb) / log2(found[-1][0])  # noqa: E731
        ticks = [(1, "1 kB"), (16, "16"), (256, "256"), (4096, "4 MB")]
        x_axis = Axis(ticks, share, "bytes of the tensor")
        low, high = 0.2, 14
        y_share = lambda t: log10(t / low) / log10(high / low)  # noqa: E731
        marks = [(0.3, "0.3"), (1, "1"), (3, "3"), (10, "10")]
        plot = Plot(sheet, x_axis, Axis(marks, y_share, "ms"), 210, right=24, left=36)
        for name, (begin, end) in {"small": (1, edge), "large": (edge, 16384)}.items():
            kbs = [begin * (end / begin) ** (i / 30) for i in range(31)]
            plot.line([(kb, fits[name](kb)) for kb in kbs], dots=False, thick=2)
        for kb, ms in found:
            dot(sheet, *plot.at(kb, ms))
        sheet.words(plot.left + 10, plot.at(1, 1.2)[1], f"{a1:.0f} µs + {b1:.0f} µs/MB")
        px, py = plot.at(4096, 6)
        sheet.words(px - 20, py, f"{a2:.0f} µs + {b2:.0f} µs/MB", "end")
        return sheet

    said = "; ".join(f"{kb} kB {ms:g} ms" for kb, ms in found)
    alt = (
        f"Times of an all_reduce: {said}. Two lines are fitted: {a1:g} µs + {b1:g} µs "
        f"per MB below {edge:g} kB, {a2:g} µs + {b2:g} µs per MB above."
    )
    return plate(title, alt, draw)
