"""What of a run has to be in the file, so that another run can go on."""

from allranks.openings.sheet import GAP, MUTED, NARROW, SIZE, Sheet

ALT = (
    "Four ranks train. Rank 0 alone writes the file; ranks 1 to 3 wait until it is "
    "there. The file holds six things, each with what goes wrong without it: the "
    "weights, under the plain model's names, or they do not load; the optimizer's "
    "state, or its first step is wrong; the schedule, or the learning rate starts "
    "again; each rank's generator state, or dropout draws different numbers; the "
    "epoch, or the data come in the wrong order; the step, or samples come twice. From "
    "it a new run with the same number of ranks continues, bit for bit on one or two "
    "ranks."
)
FILE = (
    ("weights, by plain names", "or they do not load"),
    ("optimizer", "or its first step is wrong"),
    ("schedule", "or the learning rate starts again"),
    ("each rank's generator state", "or dropout draws different numbers"),
    ("epoch", "or the data come in the wrong order"),
    ("step within the epoch", "or samples come twice"),
)
ROW = 44


def writers() -> Sheet:
    """Draw four ranks, of which one writes."""
    sheet = Sheet(NARROW, 118)
    for rank in range(4):
        x = rank * 90
        sheet.box(x, 0, 82, 44, f"rank {rank}", rank=rank, strong=0.3)
        if rank:
            sheet.words(x + 41, 64, "waits", "middle", color=MUTED)
    sheet.words(54, 84, "writes,", bold=True)
    sheet.words(54, 103, "then renames")
    return sheet


def file() -> Sheet:
    """Draw the file: what is in it, and what would happen without it."""
    sheet = Sheet(NARROW, 40 + len(FILE) * ROW)
    sheet.frame(0, 0, NARROW, sheet.height)
    sheet.words(14, 26, "checkpoint.pt", bold=True, size=SIZE + 2)
    for i, (what, otherwise) in enumerate(FILE):
        y = 40 + i * ROW
        sheet.box(8, y, NARROW - 16, ROW - 6)
        sheet.words(16, y + 16, what, bold=True)
        sheet.words(16, y + 33, otherwise)
    return sheet


def reader(width: int) -> Sheet:
    """Draw the run that goes on."""
    sheet = Sheet(width, 66)
    sheet.box(
        0,
        0,
        width,
        66,
        "a new run, same number of ranks",
        "continues, bit for bit on 1 or 2",
        dashed=True,
    )
    return sheet


def draw(width: int) -> Sheet:
    """Draw writers, file and reader: down on a phone, else around the file."""
    sheet, held = Sheet(width, 0), file()
    sheet.put(writers(), 0, 0)
    if width == NARROW:
        y = 118 + held.height
        sheet.put(held, 0, 118)
        sheet.arrow("41,46 41,116", thick=3)
        sheet.arrow(f"41,{y} 41,{y + 36}", thick=3)
        sheet.put(reader(width), 0, y + 38)
        return sheet
    left, y = NARROW + GAP, held.height - 66
    sheet.put(held, left, 0)
    sheet.arrow(f"41,46 41,140 {left - 3},140", thick=3)
    sheet.put(reader(NARROW - 40), 0, y)
    sheet.arrow(f"{left},{y + 33} {NARROW - 36},{y + 33}", thick=3)
    return sheet
