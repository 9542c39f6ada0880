"""Feeding ranks: lanes give each batch once, whoever carries them."""

from allranks.openings.sheet import NARROW, SIZE, Sheet

LANES, SAVED, KILLED, LAST = 8, 2, 3, 5  # a checkpoint after 2 steps, a kill after 3
PARTS = (2, range(KILLED)), (4, range(SAVED, LAST))  # ranks, and the steps they make
COLUMNS = sum(len(steps) for _, steps in PARTS)


def carrier(lane: int, world_size: int) -> int:
    """Return the rank that reads a lane.

    >>> [carrier(lane, 4) for lane in range(LANES)]
    [0, 1, 2, 3, 0, 1, 2, 3]
    """
    return lane % world_size


def sentence(world_size: int, steps: range) -> str:
    """Return a sentence about the steps that some ranks make."""
    return (
        f"In steps {steps[0] + 1} to {steps[-1] + 1}, {world_size} ranks carry "
        f"{LANES // world_size} lanes each."
    )


ALT = (
    f"A grid of {LANES} lanes and {LAST} steps. In each step every lane gives one "
    "batch, drawn in the color of the rank that reads it. "
    + " ".join(sentence(*part) for part in PARTS)
    + f" A checkpoint is saved after step {SAVED}, and a rank is killed after step "
    f"{KILLED}. So step {KILLED} is made twice, with the same batches, and its first "
    "time is drawn faintly, as it does not count."
)
HIGH, ROOM = 30, 58  # of a row; for a lane's name


def draw(width: int) -> Sheet:
    """Draw a box for each batch: lanes downwards, steps to the right."""
    wide = width > NARROW
    sheet = Sheet(width, 76 + HIGH * LANES + 64)
    gap = 40 if wide else 26  # where the kill is
    cell = (width - ROOM - gap) / COLUMNS
    if not wide:
        sheet.words(0, 46, "step")
    for part, (world_size, steps) in enumerate(PARTS):
        shift = ROOM + part * (gap + cell * KILLED)
        middle = shift + cell * len(steps) / 2
        title = f"{world_size} ranks"
        sheet.words(middle, 18, title, "middle", bold=True, size=SIZE + 2)
        for column, step in enumerate(steps):
            x, lost = shift + cell * column, not part and step >= SAVED
            sheet.words(
                x + cell / 2,
                46,
                f"step {step + 1}" if wide else f"{step + 1}",
                "middle",
            )
            for lane in range(LANES):
                rank, y = carrier(lane, world_size), 58 + HIGH * lane
                text = (f"rank {rank}",) if wide else (f"{rank}",)
                how = {"strong": 0.04, "dashed": True} if lost else {"strong": 0.3}
                sheet.box(x + 2, y + 2, cell - 4, HIGH - 4, *text, rank=rank, **how)
    for lane in range(LANES):
        sheet.words(0, 58 + HIGH * lane + HIGH / 2 + 5, f"lane {lane}")
    x, bottom = ROOM + cell * KILLED + gap / 2, 58 + HIGH * LANES
    sheet.arrow(f"{x:.4g},{bottom + 8} {x:.4g},56", color="currentColor")
    sheet.wrong(x - 24, bottom + 28, "a rank is killed")
    x = ROOM + cell * SAVED
    sheet.arrow(f"{x:.4g},56 {x:.4g},{bottom + 12}")
    sheet.words(x + 16, bottom + 28, "checkpoint", "end", bold=True)
    note = "each batch counts once, and in the same step"
    sheet.lines(
        0, bottom + 58, note + (", whoever reads it" if wide else ""), width + 60
    )
    return sheet
