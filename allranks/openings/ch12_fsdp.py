"""Sharding: what each rank holds with DDP, and with each stage of ZeRO."""

from allranks.openings.sheet import NARROW, SIZE, Sheet

RANKS = 4
KINDS = {"weights": 4, "gradients": 4, "Adam's state": 8}  # bytes per parameter
DEPTHS = 0.62, 0.2, 0.4
WAYS = {  # a stage cuts so many kinds, the last ones first
    "DDP: everybody has everything": 0,
    "ZeRO-1 cuts Adam's state": 1,
    "ZeRO-2 cuts the gradients, too": 2,
    "ZeRO-3 cuts the weights, too": 3,
}


def held(cut: int) -> float:
    """Return the bytes that a rank holds for each parameter.

    >>> [held(cut) for cut in range(4)]
    [16.0, 10.0, 7.0, 4.0]
    """
    sizes = [*KINDS.values()]
    whole = len(sizes) - cut
    return sum(sizes[:whole]) + sum(sizes[whole:]) / RANKS


def said(cut: int) -> str:
    """Return what a rank holds, as text."""
    return f"{held(cut):g} bytes"


ALT = (
    f"Four rows with a bar for each of {RANKS} ranks, of "
    + ", ".join(f"{size} bytes of {kind}" for kind, size in KINDS.items())
    + " for each parameter. What a rank does not hold is empty. "
    + " ".join(f"{way}: {said(cut)} on each rank." for way, cut in WAYS.items())
)
BAR, PITCH = 30, 74


def draw(width: int) -> Sheet:
    """Draw a row for each way, and in it a bar for each rank."""
    wide = width > NARROW
    top = 62 if wide else 82
    sheet = Sheet(width, top + PITCH * len(WAYS) - 14)
    places = zip((0, 210, 420) if wide else (0, 130, 0), DEPTHS, strict=True)
    for (kind, size), (x, strong) in zip(KINDS.items(), places, strict=True):
        y = 2 if wide or strong != DEPTHS[-1] else 22
        sheet.box(x, y, 22, 14, strong=strong)
        sheet.words(x + 30, y + 12, f"{kind}: {size} bytes" if wide else kind)
    gap = 18 if wide else 8
    column = (width - 1 - gap * (RANKS - 1)) / RANKS
    unit = column / sum(KINDS.values())
    for rank in range(RANKS):
        middle = rank * (column + gap) + column / 2
        sheet.words(middle, top - 20, f"rank {rank}", "middle")
    for row, (way, cut) in enumerate(WAYS.items()):
        y = top + PITCH * row
        sheet.words(0, y + 10, way if wide else way.partition(":")[0], bold=True)
        sheet.words(width, y + 10, said(cut), "end", bold=True, size=SIZE + 2)
        for rank in range(RANKS):
            bar(sheet, rank * (column + gap), y + 18, unit, rank, cut)
    return sheet


def bar(sheet: Sheet, x: float, y: float, unit: float, rank: int, cut: int) -> None:
    """Draw what a rank holds; the parts of other ranks are empty."""
    whole = len(KINDS) - cut
    sizes = zip(KINDS.values(), DEPTHS, strict=True)
    for number, (size, strong) in enumerate(sizes):
        width = size * unit
        if number < whole:
            sheet.box(x, y, width, BAR, rank=rank, strong=strong)
        else:
            sheet.box(x, y, width, BAR, strong=0, dashed=True)
            part = width / RANKS
            sheet.box(x + rank * part, y, part, BAR, rank=rank, strong=strong)
        x += width
