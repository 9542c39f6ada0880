"""Feeding ranks: lanes give each batch once, whoever carries them."""

from allranks.pictures.openings.sheet import NARROW, SIZE, WRONG, Sheet

LANES, STEPS, KILLED = 8, 6, 3  # a kill after three steps
PARTS = (2, range(KILLED)), (4, range(KILLED, STEPS))  # ranks, and the steps they make


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
    f"A grid of {LANES} lanes and {STEPS} steps. In each step every lane gives one "
    "batch, drawn in the colour of the rank that reads it. "
    + " ".join(sentence(*part) for part in PARTS)
    + f" Between steps {KILLED} and {KILLED + 1} a rank is killed. No box is empty, "
    "and none is there twice."
)
HIGH, ROOM = 30, 58  # of a row; for a lane's name


def draw(width: int) -> Sheet:
    """Draw a box for each batch: lanes downwards, steps to the right."""
    wide = width > NARROW
    sheet = Sheet(width, 76 + HIGH * LANES + 64)
    gap = 40 if wide else 26  # where the kill is
    cell = (width - ROOM - gap) / STEPS
    if not wide:
        sheet.words(0, 46, "step")
    for world_size, steps in PARTS:
        shift = ROOM + (gap if steps[0] else 0)
        middle = shift + cell * (steps[0] + len(steps) / 2)
        title = f"{world_size} ranks"
        sheet.words(middle, 18, title, "middle", bold=True, size=SIZE + 2)
        for step in steps:
            x = shift + cell * step
            sheet.words(
                x + cell / 2,
                46,
                f"step {step + 1}" if wide else f"{step + 1}",
                "middle",
            )
            for lane in range(LANES):
                rank, y = carrier(lane, world_size), 58 + HIGH * lane
                text = (f"rank {rank}",) if wide else (f"{rank}",)
                sheet.box(
                    x + 2, y + 2, cell - 4, HIGH - 4, *text, rank=rank, strong=0.3
                )
    for lane in range(LANES):
        sheet.words(0, 58 + HIGH * lane + HIGH / 2 + 5, f"lane {lane}")
    x, bottom = ROOM + cell * KILLED + gap / 2, 58 + HIGH * LANES
    sheet.arrow(f"{x:.4g},{bottom + 8} {x:.4g},56", color=WRONG)
    sheet.words(x, bottom + 28, "a rank is killed", "middle", bold=True, color=WRONG)
    note = "each batch is read once, and in the same step"
    sheet.lines(
        0, bottom + 58, note + (", whoever reads it" if wide else ""), width + 60
    )
    return sheet
