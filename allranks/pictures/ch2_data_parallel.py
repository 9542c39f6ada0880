"""Pictures of chapter 2: who gets how much, which routes it takes, threads."""

from collections.abc import Mapping

from allranks.base.picture import Picture
from allranks.base.units import amount
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import Row, bars, claim, fill, plate, read, wide


def routes(output: str) -> Picture:
    """Draw the bytes that went from each device to each other one."""
    lines = read(output, r"^(\S+) +(\S+) +(\d+) +([\d,]+)$", 3)
    sent = {(m[1], m[2]): int(m[4].replace(",", "")) for m in lines}
    devices = sorted({name for pair in sent for name in pair if name != "cpu"})
    first, *others = devices
    title = claim(
        not any((a, b) in sent for a in others for b in others),
        f"Everything passes through {first}: no route joins two of the others",
    )
    most = max(sent[pair] for pair in sent if "cpu" not in pair)

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        name, high = (110 if inside else 64), 40
        cell = (width - name) / len(devices)
        sheet = Sheet(width, 52 + (high + 4) * len(devices))
        sheet.words(name + cell * len(devices) / 2, 15, "to", "middle", bold=True)
        for i, device in enumerate(devices):
            sheet.words(name + cell * (i + 0.5), 36, device, "middle", bold=True)
            y = 46 + (high + 4) * i
            text = f"from {device}" if inside else device
            sheet.words(0, y + 25, text, bold=True)
            for j, other in enumerate(devices):
                place = (name + cell * j + 2, y, cell - 4, high)
                num = sent.get((device, other), 0)
                if i == j:
                    continue
                if not num:
                    fill(sheet, *place, "empty")
                    sheet.words(place[0] + place[2] / 2, y + 25, "none", "middle")
                    continue
                # As wide as its share of the busiest route.
                long_ = place[2] * num / most
                fill(sheet, place[0], y, long_, high, "travels", i)
                text, middle = amount(num, "B"), place[0] + place[2] / 2
                sheet.blank(middle - 5 * len(text), y + 9, 10 * len(text), 22)
                sheet.words(middle, y + 25, text, "middle")
        return sheet

    said = "; ".join(f"{a} to {b}: {n} bytes" for (a, b), n in sent.items())
    return plate(title, f"A table of copies between devices. {said}.", draw)


def shares(table: str) -> Picture:
    """Draw how many samples of a batch each device gets, from the notebook's table."""
    head, *rows = [line.split() for line in table.splitlines() if line.strip()]
    if head[0] != "batch" or any(len(row) != len(head) for row in rows):
        raise ValueError(f"no table of shares by device: {table[:80]}")
    counts = [[0 if text == "–" else int(text) for text in row] for row in rows]
    if any(sum(row[1:]) != row[0] for row in counts):
        raise ValueError(f"shares do not add up to the batch: {counts}")
    most = max(row[0] for row in counts)
    empty = [row[0] for row in counts if not row[-1]]
    title = claim(
        empty == [row[0] for row in counts[1:]],
        f"From {most} samples each device gets {counts[0][1]}; from fewer, the last "
        f"get none",
    )

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        name = 96 if inside else 74
        cell = (width - name) / most
        sheet = Sheet(width, 44 * len(counts) - 8)
        for place, (batch, *row) in enumerate(counts):
            y, at = 44 * place, 0
            sheet.words(0, y + 23, f"batch {batch}", bold=True)
            for device, num in enumerate(row):
                # A box for each sample, in the color of the device that gets it.
                for sample in range(at, at + num):
                    box = (name + cell * sample + 1, y, cell - 3, 36)
                    fill(sheet, *box, "plain", device)
                    sheet.words(box[0] + box[2] / 2, y + 23, f"{device}", "middle")
                at += num
            if at < most:
                missing = [d for d, num in enumerate(row) if not num]
                text = "none for " + ", ".join(map(str, missing))
                if not missing:
                    continue
                sheet.words(name + cell * at + 8, y + 23, text)
        return sheet

    said = "; ".join(f"{batch}: " + ", ".join(map(str, row)) for batch, *row in counts)
    return plate(title, f"Samples of each device, by the batch. {said}.", draw)


def threads(data: Mapping) -> Picture:
    """Draw how many times faster two threads and two processes are than one."""
    rows, said = [], []
    for key, name in (
        ("small_ops", "many small operations"),
        ("large_ops", "few large ones"),
    ):
        for way in ("threads", "processes"):
            low, mid, high = (data[key][way + end] for end in ("_min", "", "_max"))
            text = f"{mid:.2f} ({low:.2f} to {high:.2f})"
            rows.append(Row(f"{name}, {way}", [(mid, "plain")], text))
            said.append(f"{name}, two {way}: {text}")
    small = data["small_ops"]
    title = claim(
        small["threads"] < 1 < small["processes"],
        "Small operations in two threads are slower than one after the other",
    )
    alt = "How many times faster than one after the other: " + "; ".join(said)
    most = max(part[0][0] for part in (row.parts for row in rows))
    mark = (1, "one after the other")
    return plate(title, alt, lambda width: bars(width, rows, most, 270, 160, mark=mark))
