"""Data parallelism in five steps: share, compute, average, step, stay equal."""

from allranks.openings.sheet import NARROW, Sheet

ALT = (
    "Five stages of one training step on two ranks. The batch of eight samples is "
    "shared: rank 0 gets samples 0, 2, 4 and 6, rank 1 gets 1, 3, 5 and 7. Both start "
    "from equal weights. Each computes a gradient of its own, g0 and g1, which differ. "
    "An all_reduce in backward gives both the same average, (g0 + g1) / 2. Both take "
    "the same step, so that their weights are equal again."
)
# What each rank holds, as the heights of three bars; a step subtracts the average.
WEIGHTS, OWN = (11, 17, 13), ((9, -3, 2), (-3, -7, 6))
AVERAGE = tuple(sum(pair) / 2 for pair in zip(*OWN, strict=True))
STEPPED = tuple(w - g for w, g in zip(WEIGHTS, AVERAGE, strict=True))
STAGES = (
    ("split the data", ("rank 0", "rank 1"), "", None),
    ("equal replicas", ("weights", "weights"), "=", (WEIGHTS, WEIGHTS)),
    ("own gradients", ("g0", "g1"), "≠", OWN),
    ("all_reduce", ("(g0 + g1) / 2", "(g0 + g1) / 2"), "=", (AVERAGE, AVERAGE)),
    ("same step", ("new weights", "new weights"), "=", (STEPPED, STEPPED)),
)
BOX, HEIGHT, APART = 124, 82, 44  # of a rank's box, and between two of them


def held(sheet: Sheet, x: float, y: float, rank: int, stage: tuple) -> None:
    """Draw what a rank holds: its samples, or numbers as bars on a line."""
    _, texts, _, bars = stage
    sheet.box(x, y, BOX, HEIGHT, rank=rank, strong=0.2)
    sheet.words(x + BOX / 2, y + 20, texts[rank], "middle", bold=True)
    if bars is None:
        for i in range(4):
            place = (x + 8 + i * 27, y + 40, 25, 28)
            sheet.box(*place, f"{2 * i + rank}", rank=rank, strong=0.35, bold=False)
        return
    line = y + (72 if min(bars[rank]) >= 0 else 58)
    sheet.bars(x + 20, line, [2 * value for value in bars[rank]], rank)


def wide(sheet: Sheet) -> None:
    """Draw the stages from left to right, a lane for each rank."""
    pitch, lanes = (sheet.width - BOX) / 4, (28, 28 + HEIGHT + APART)
    sheet.height = lanes[1] + HEIGHT
    heights = [y + HEIGHT / 2 for y in lanes]
    for i, stage in enumerate(STAGES):
        x = i * pitch
        sheet.words(x + BOX / 2, 16, f"{i + 1} {stage[0]}", "middle", bold=True)
        for rank, y in enumerate(lanes):
            held(sheet, x, y, rank, stage)
        sign = stage[2]
        sheet.words(x + BOX / 2, 28 + HEIGHT + 30, sign, "middle", bold=True, size=22)
        for start in heights if i else ():
            ends = heights if stage[0] == "all_reduce" else [start]
            for end in ends:
                sheet.arrow(f"{x - pitch + BOX + 3},{start} {x - 3},{end}")


def narrow(sheet: Sheet) -> None:
    """Draw the stages from top to bottom, a column for each rank."""
    pitch, lanes = HEIGHT + 66, (0, NARROW - BOX)
    sheet.height = 4 * pitch + 26 + HEIGHT
    middles = [x + BOX / 2 for x in lanes]
    for i, stage in enumerate(STAGES):
        y = i * pitch + 26
        for start in middles if i else ():
            for end in middles if stage[0] == "all_reduce" else [start]:
                sheet.arrow(f"{start},{y - 63} {start},{y - 31} {end},{y - 3}")
        for rank, x in enumerate(lanes):
            held(sheet, x, y, rank, stage)
        middle = y + HEIGHT / 2 + 8
        sheet.words(NARROW / 2, middle, stage[2], "middle", bold=True, size=22)
        title, above = f"{i + 1} {stage[0]}", y - (36 if i else 10)
        sheet.words(NARROW / 2, above, title, "middle", bold=True)


def draw(width: int) -> Sheet:
    """Draw the stages along the longer side."""
    sheet = Sheet(width, 0)
    (wide if width > NARROW else narrow)(sheet)
    return sheet
