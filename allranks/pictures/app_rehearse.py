"""Pictures of the rehearsal's page: what fills a GPU, and who reads what."""

import re

from allranks.base.picture import Picture
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import FEW, claim, fill, plate, read, rule, wide

UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def memory(output: str) -> Picture:
    """Draw what the memory of the first GPU holds at its peak."""
    block = read(
        output, r"Memory at the peak\n.*\n.*?cuda:0 (?:.*\n)+?(?=  \S* ?cuda:1|\n)"
    )
    text = " ".join(block[0][0].split())
    # The list of kinds goes on in indented lines, so these were joined.
    found = re.findall(r"([a-z][a-z' ]*?) ([\d.]+) (B|kB|MB|GB)(?=,|$| vm)", text)
    kinds = [
        (name.strip(), float(n) * UNITS[unit], f"{n} {unit}") for name, n, unit in found
    ]
    if len(kinds) < 3:
        raise ValueError(f"Memory at the peak names {len(kinds)} kinds: {text[:200]}")
    total = sum(size for _, size, _ in kinds)
    title = claim(
        kinds[0][1] == max(size for _, size, _ in kinds),
        f"The {kinds[0][0]} takes the largest part of the memory: {kinds[0][2]}",
    )
    depths = ("plain", "faint")

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        sheet = Sheet(width, 0)
        x = 0.0
        for i, (_, size, _) in enumerate(kinds):
            long_ = width * size / total
            fill(sheet, x, 0, long_ - 2, 40, depths[i % 2], 0)
            if long_ > 24:
                sheet.words(x + long_ / 2, 25, f"{i + 1}", "middle", bold=True)
            x += long_
        columns = 2 if inside else 1
        for i, (name, _, text_) in enumerate(kinds):
            left, y = (width / columns) * (i % columns), 66 + 24 * (i // columns)
            sheet.words(left, y, f"{i + 1}", bold=True)
            sheet.words(left + 18, y, f"{name}: {text_}")
        sheet.height = 66 + 24 * -(-len(kinds) // columns) - 10
        return sheet

    said = "; ".join(f"{name} {text_}" for name, _, text_ in kinds)
    return plate(title, f"The memory of cuda:0 at its peak: {said}.", draw)


def samples(output: str) -> Picture:
    """Draw which rank read how many of the samples."""
    line = read(output, r"^  \S+:\d+ +(\d+) +(\d+) +(\d+) +ranks (\d+)–(\d+)")[0]
    passes, each, total, first, last = map(int, line.groups())
    ranks = last - first + 1
    # 512 samples on 2 ranks -> 256 in each pass
    title = claim(
        each * ranks == total,
        f"{ranks} ranks read {each} samples each: all {total}, each once",
    )

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 0)
        name = 62
        unit = (width - name) / ranks
        for number in range(passes):
            y = 50 * number
            sheet.words(0, y + 25, f"pass {number + 1}")
            for rank in range(ranks):
                place = (name + unit * rank + 1, y, unit - 3, 40)
                sheet.box(*place, f"rank {rank}: {each}", rank=rank, strong=0.3)
        sheet.height = 50 * passes - 8
        return sheet

    alt = (
        f"In each of {passes} passes {ranks} ranks read {each} of {total} samples each."
    )
    return plate(title, alt, draw)


def places(output: str) -> Picture:
    """Draw which rank had which GPU on which machine."""
    lines = read(output, r"^  (\d+) +(\S+) +(\d+) +(cuda:\d+) +\d+ +(\d+) +ended", 2)
    hosts = sorted({line[2] for line in lines})
    title = claim(
        len(hosts) == len(lines),
        f"{len(lines)} ranks on {len(hosts)} machines: each has its machine's cuda:0",
    )

    each: dict[str, dict] = {host: {} for host in hosts}
    for line in lines:
        texts = f"rank {line[1]}", f"local rank {line[3]}", line[4]
        each[line[2]][int(line[1])] = texts
    said = "; ".join(
        f"rank {line[1]} on {line[2]}, local rank {line[3]}, {line[4]}"
        for line in lines
    )
    return plate(title, f"{said}.", lambda width: machines(each, width))


def machines(each: dict[str, dict[int, tuple[str, ...]]], width: int) -> Sheet:
    """Draw a frame for each machine, and in it a box for each of its ranks.

    Args:
        each: for each machine, the lines of text of each of its ranks.
        width: of the drawing, in px.
    """
    sheet, room = Sheet(width, 122), width / len(each)
    for place, (host, ranks) in enumerate(each.items()):
        x, cell = room * place, (room - 36) / len(ranks)
        sheet.frame(x + 2, 0, room - 12, 122)
        sheet.words(x + 14, 22, host, bold=True)
        for i, (rank, texts) in enumerate(ranks.items()):
            box = (x + 14 + cell * i, 36, cell - 4, 72)
            sheet.box(*box, *texts, rank=rank, strong=0.3)
    return sheet


def mesh(given: str) -> Picture:
    """Draw ranks as a table: a row is a machine, and a column has one of each.

    Args:
        given: the number of machines, and of GPUs in each, such as ``128 8``.
    """
    rows, columns = map(int, given.split())
    shown = 0, 1, 2, None, rows - 1  # the machine in each line of the drawing

    def draw(width: int) -> Sheet:
        sheet, high = Sheet(width, 0), 34
        name = 74 if wide(sheet) else 36  # px, for a machine's number
        unit, top = (width - name) / columns, 26
        sheet.words(0, 16, "machine" if wide(sheet) else "GPU")
        for column in range(columns):
            x = name + unit * column
            gpu = f"GPU {column}" if wide(sheet) else str(column)
            sheet.words(x + unit / 2, 16, gpu, "middle")
            for line, row in enumerate(shown):
                y = top + high * line
                if row is None:
                    sheet.words(x + unit / 2, y + 22, "⋮", "middle")
                    continue
                depth = "plain" if row == 0 or column == 0 else "faint"
                fill(sheet, x + 2, y + 2, unit - 4, high - 4, depth)
                rank = str(columns * row + column)
                sheet.words(x + unit / 2, y + 22, rank, "middle", size=FEW)
        for line, row in enumerate(shown):
            sheet.words(0, top + high * line + 22, "⋮" if row is None else str(row))
        bottom = top + high * len(shown)
        rule(sheet, f"M{name} {top}H{width}v{high}H{name}z", "none", "currentColor", 3)
        column = f"M{name + 1} {top}V{bottom}h{unit - 2:.4g}V{top}"
        rule(sheet, column, "7 4", "currentColor", 3)
        for line, (dash, text) in enumerate(
            [
                ("none", f"tp: the {columns} GPUs of one machine"),
                ("7 4", f"dp: {rows} GPUs, one of each machine"),
            ]
        ):
            y = bottom + 22 + 24 * line
            rule(sheet, f"M0 {y - 5}h40", dash, "currentColor", 3)
            sheet.words(52, y, text)
        sheet.height = bottom + 52
        return sheet

    ranks = rows * columns
    return plate(
        f"{ranks:,} ranks as a table: each one belongs to one row and one column",
        f"A table of {rows} machines with {columns} GPUs each. A row has a machine's "
        f"ranks, such as 0 to {columns - 1}. A column has one rank of each machine, "
        f"such as 0, {columns}, {2 * columns}, up to {ranks - columns}.",
        draw,
    )
