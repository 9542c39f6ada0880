"""Pictures of chapter 2: which routes a real run took."""

from allranks.base.picture import Picture
from allranks.base.units import amount
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import claim, fill, plate, read, wide


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
                long_ = place[2] * num / most
                fill(sheet, place[0], y, long_, high, "travels", i)
                text, middle = amount(num, "B"), place[0] + place[2] / 2
                sheet.blank(middle - 5 * len(text), y + 9, 10 * len(text), 22)
                sheet.words(middle, y + 25, text, "middle")
        return sheet

    said = "; ".join(f"{a} to {b}: {n} bytes" for (a, b), n in sent.items())
    return plate(title, f"A table of copies between devices. {said}.", draw)
