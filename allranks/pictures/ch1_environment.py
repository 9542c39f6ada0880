"""Pictures of chapter 1: ranks that add, GPUs to choose from, what may be short."""

import re

from allranks.base.picture import Picture
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import BAR, claim, fill, plate, read, wide

NEAR = {  # from near to far, as nvidia-smi topo -m calls a path
    "NV": "NVLink",
    "PIX": "one switch",
    "PXB": "several bridges",
    "PHB": "through the CPU",
    "NODE": "two roots of a CPU",
    "SYS": "from CPU to CPU",
}
MIB = 1024


def gpus(output: str) -> Picture:
    """Draw the memory and the load of each GPU in the doctor's line ``busy``."""
    num, whole = read(output, r"(\d+) x .*?, ([\d.]+) GiB")[0].groups()
    text = " ".join(output.split())
    found = re.findall(r"(\d+) \((\d+) MiB, (\d+) %, processes: (\d+)\)", text)
    if len(found) != int(num):
        raise ValueError(f"the line busy names {len(found)} GPUs of {num}: {text}")
    rows = [tuple(map(int, one)) for one in found]
    total = float(whole) * MIB
    free = {gpu: total - used for gpu, used, *_ in rows}
    most = max(free, key=free.get)
    load = {gpu: busy for gpu, _, busy, _ in rows}
    title = claim(
        load[most] > 20 and min(free.values()) < 0.1 * total,
        f"GPU {most} has the most room, but it is busy; the idle one is nearly full",
    )

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        left, pitch = (64, 36) if inside else (58, 36)
        half = (width - left) / 2
        sheet = Sheet(width, 30 + pitch * len(rows))
        sheet.words(left, 14, "memory taken", bold=True)
        name = "time with a kernel" if inside else "busy"
        sheet.words(left + half + 10, 14, name, bold=True)
        for place, (gpu, used, busy, _) in enumerate(rows):
            y = 26 + pitch * place
            sheet.words(0, y + 17, f"GPU {gpu}", bold=True)
            # Leave room for what is said behind the bar.
            long_ = half - (104 if inside else 58)
            fill(sheet, left, y, long_, BAR, "empty", gpu)
            fill(sheet, left, y, long_ * min(1, used / total), BAR, "plain", gpu)
            said = (
                f"{free[gpu] / MIB:.1f} GiB free"
                if inside
                else f"{free[gpu] / MIB:.1f} G"
            )
            sheet.words(left + long_ + 6, y + 17, said)
            x, long_ = left + half + 10, half - 70
            fill(sheet, x, y, long_, BAR, "empty", gpu)
            if busy:
                fill(sheet, x, y, long_ * busy / 100, BAR, "plain", gpu)
            sheet.words(x + long_ + 6, y + 17, f"{busy} %")
        return sheet

    alt = f"{num} GPUs of {whole} GiB: " + "; ".join(
        f"GPU {gpu} has {used} MiB taken by {num_} processes, and a kernel ran {busy} "
        "% of the time"
        for gpu, used, busy, num_ in rows
    )
    return plate(title, alt, draw)


def topology(output: str) -> Picture:
    """Draw how the GPUs of the doctor's line ``topology`` are connected."""
    line = read(output, r"topology +(.+)$")[0][1]
    links = {
        tuple(map(int, pair.split("-"))): name
        for part in line.split("; ")
        for name, _, pairs in [part.partition(" ")]
        for pair in pairs.split()
        if re.fullmatch(r"\d+-\d+", pair)
    }
    num = 1 + max((max(pair) for pair in links), default=0)
    if len(links) != num * (num - 1) // 2:
        raise ValueError(f"topology {line} has no path for each pair of {num} GPUs")
    order = list(NEAR)
    best = min(links, key=lambda pair: order.index(re.sub(r"\d", "", links[pair])))
    lone = [p for p in links if links[p] == links[best]] == [best]
    title = claim(
        lone, f"GPUs {best[0]} and {best[1]} are nearest to each other: take these two"
    )

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 0)
        name, cell = 70, min(96, (width - 70) / num)
        for gpu in range(num):
            x = name + cell * (gpu + 0.5)
            sheet.words(x, 16, f"GPU {gpu}", "middle", bold=True)
            sheet.words(0, 48 + 40 * gpu, f"GPU {gpu}", bold=True)
            for other in range(num):
                pair = tuple(sorted((gpu, other)))
                place = (name + cell * other + 2, 26 + 40 * gpu, cell - 4, 36)
                if gpu == other:
                    continue
                # The nearer, the darker.
                kind = "plain" if pair == best else "faint"
                kind = "empty" if links[pair] == "SYS" else kind
                fill(sheet, *place, kind)
                x, y = place[0] + place[2] / 2, place[1] + 23
                sheet.words(x, y, links[pair], "middle", bold=pair == best)
        used = sorted(
            set(links.values()), key=lambda n: order.index(re.sub(r"\d", "", n))
        )
        y = 44 if wide(sheet) else 26 + 40 * num + 20
        x = name + cell * num + 40 if wide(sheet) else 0
        for text in used:
            said = NEAR[re.sub(r"\d", "", text)]
            sheet.words(x, y, text, bold=True)
            sheet.words(x + 48, y, said)
            y += 28
        sheet.height = max(26 + 40 * num, y - 14)
        return sheet

    alt = f"A table of paths between {num} GPUs: " + "; ".join(
        f"{a} and {b}: {name}" for (a, b), name in links.items()
    )
    return plate(title, alt, draw)


def visible(given: str) -> Picture:
    """Draw which GPUs a script sees.

    Args:
        given: how many GPUs there are, and what the variable says, such as ``8 6,1``.
    """
    num, _, chosen = given.partition(" ")
    num, chosen = int(num), [int(text) for text in chosen.split(",")]
    if not all(0 <= gpu < num for gpu in chosen):
        raise ValueError(f"{given}: there are GPUs 0 to {num - 1}")

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 178)
        cell = width / num
        inside = wide(sheet)
        sheet.words(0, 16, "the machine's GPUs", bold=True)
        for gpu in range(num):
            how = {"rank": gpu, "strong": 0.3} if gpu in chosen else {"strong": 0}
            name = f"GPU {gpu}" if inside else f"{gpu}"
            sheet.box(
                cell * gpu + 2, 26, cell - 4, 36, name, dashed=gpu not in chosen, **how
            )
        box, y = 110 if inside else 92, 126
        # What the script sees stands in the middle, in the list's order.
        start = width / 2 - (box + 20) * len(chosen) / 2
        for place, gpu in enumerate(chosen):
            x = start + (box + 20) * place + 10
            down = f"{cell * (gpu + 0.5):.4g},66 {x + box / 2:.4g},{y - 4}"
            sheet.arrow(down, thick=2)
            sheet.box(x, y, box, 36, f"cuda:{place}", rank=gpu, strong=0.3)
        sheet.words(0, y + 22, "the script" if inside else "script", bold=True)
        return sheet

    said = ", ".join(f"cuda:{i} is GPU {gpu}" for i, gpu in enumerate(chosen))
    text = ",".join(map(str, chosen))
    return plate(
        f"CUDA_VISIBLE_DEVICES={text}: the list decides what cuda:0 is",
        f"Of {num} GPUs the script sees {len(chosen)}: {said}.",
        draw,
    )


def added(output: str) -> Picture:
    """Draw the all_reduce of two ranks that the chapter's script makes."""
    lines = read(output, r"\[rank \d+/\d+\] I brought (\d+), .* made it (\d+)", 2)
    terms, total = [line[1] for line in lines], lines[0][2]
    title = claim(
        all(line[2] == total == str(sum(map(int, terms))) for line in lines),
        f"An all_reduce gives each rank the sum, {' + '.join(terms)} = {total}",
    )

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 40 + 56 * len(terms))
        box = (width - 60 - 110) / 2
        for x, text in ((60, "before"), (60 + box + 110, "after")):
            sheet.words(x + box / 2, 16, text, "middle", bold=True)
        for rank, term in enumerate(terms):
            y = 28 + 56 * rank
            sheet.words(0, y + 26, f"rank {rank}")
            sheet.box(60, y, box, 42, term, rank=rank, strong=0.3)
            sheet.arrow(f"{64 + box},{y + 21} {60 + box + 104},{y + 21}")
            x = 60 + box + 110
            sheet.box(x, y, box, 42, total, strong=0.06)
            # A stripe for each rank whose number is in the sum.
            stripe = box / len(terms)
            for i in range(len(terms)):
                fill(sheet, x + stripe * i, y + 34, stripe, 8, "strong", i)
        return sheet

    said = "; ".join(f"rank {rank} brings {term}" for rank, term in enumerate(terms))
    return plate(title, f"{said}. Afterwards each has {total}.", draw)


def wheels(table: str) -> Picture:
    """Draw which driver runs which CUDA, from the notebook's table."""
    head, *rows = [
        re.split(r"  +", line.strip()) for line in table.splitlines() if line
    ]
    if head[0] != "driver" or any(len(row) != len(head) for row in rows):
        raise ValueError(f"no table of drivers: {table.splitlines()[0]}")
    title = "A new driver runs old wheels; an old driver runs no new ones"
    marks = [[text == "runs" for text in row[1:]] for row in rows]
    # In each row, what runs stands left of what is too new.
    claim(all(row == sorted(row, reverse=True) for row in marks), title)

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 30 + 40 * len(rows))
        name = 118
        cell = min(150, (width - name) / (len(head) - 1))
        for i, text in enumerate(head[1:]):
            text = text if wide(sheet) else text.removeprefix("CUDA ")
            sheet.words(name + cell * (i + 0.5), 16, text, "middle", bold=True)
        if not wide(sheet):
            sheet.words(0, 16, "driver / CUDA")
        for place, (row, good) in enumerate(zip(rows, marks, strict=True)):
            y = 28 + 40 * place
            sheet.words(0, y + 23, row[0], bold=True)
            for i, (text, fine) in enumerate(zip(row[1:], good, strict=True)):
                box = (name + cell * i + 2, y, cell - 4, 36)
                fill(sheet, *box, "plain" if fine else "empty")
                sheet.words(box[0] + box[2] / 2, y + 23, text, "middle", bold=fine)
        return sheet

    alt = "; ".join(
        f"driver {row[0]}: "
        + ", ".join(f"{a} {b}" for a, b in zip(head[1:], row[1:], strict=True))
        for row in rows
    )
    return plate(title, alt, draw)


def needs() -> Picture:
    """Draw what a rank takes from its machine, and how each shortage looks."""
    things = (
        ("too few cores", "training is slow"),
        ("/dev/shm is full", "a worker dies with a bus error"),
        ("out of memory", "a rank ends with signal 9"),
        ("a low limit on open files", "Too many open files"),
        ("the port is taken", "the address is already in use"),
        ("the wrong address", "ranks on two machines don't meet"),
    )

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 0)
        inside = wide(sheet)
        # On a phone the boxes stand below each other.
        columns = 2 if inside else 1
        box, high = (width - 16 * (columns - 1)) / columns, 48
        for i, (what, sign) in enumerate(things):
            x, y = i % columns * (box + 16), i // columns * (high + 8)
            fill(sheet, x, y, box, high, "faint")
            sheet.words(x + 12, y + 20, what, bold=True)
            sheet.words(x + 12, y + 39, f"you see: {sign}")
        sheet.height = -(-len(things) // columns) * (high + 8)
        return sheet

    said = "; ".join(f"{what}: {sign}" for what, sign in things)
    return plate(
        "Six faults of a machine that look like bugs in your training",
        f"Each with what you see. {said}.",
        draw,
    )
