"""A process that believes in two GPUs, and what of them is real."""

from allranks.openings.sheet import GAP, NARROW, SIZE, Sheet, halves

ALT = (
    "Left: one process on a laptop. To torch it has two devices, vgpu:0 and vgpu:1, "
    "each with 64 MiB of memory, in which its tensors take room. A copy from one to "
    "the other is counted, and an operation on tensors of both fails with torch's own "
    "error. Below them the CPU computes everything. Right: what you see. Results, "
    "placement, memory, traffic and errors are real; speed is not: its times are "
    "estimated."
)
REAL = (
    ("results", "the CPU computes them"),
    ("placement", "mixed devices fail, as on GPUs"),
    ("memory", "each tensor counts, until it is full"),
    ("traffic", "each copy is counted"),
    ("errors", "torch's own"),
)
HIGH, BOX = 300, 148


def process() -> Sheet:
    """Draw the devices that torch sees, and what computes."""
    sheet = Sheet(NARROW, HIGH)
    sheet.frame(0, 0, NARROW, HIGH, dashed=True)
    sheet.words(14, 26, "one process", bold=True, size=SIZE + 2)
    for device in range(2):
        x = 14 + device * (BOX + 28)
        sheet.frame(x, 42, BOX, 158, rank=device)
        sheet.words(x + BOX / 2, 64, f"vgpu:{device}", "middle", bold=True)
        sheet.words(x + BOX / 2, 190, "64 MiB", "middle")
        names = ("weights", "inputs") if not device else ("labels",)
        for i, name in enumerate(names):
            place = (x + 12, 136 - i * 46, BOX - 24, 38)
            sheet.box(*place, name, rank=device, strong=0.3, bold=False)
        sheet.arrow(f"{x + BOX / 2},202 {x + BOX / 2},234")
    sheet.arrow(f"{14 + BOX + 2},109 {14 + BOX + 26},109")
    place = (14 + BOX + 28 + 12, 90, BOX - 24, 38)
    sheet.box(*place, "a copy", rank=1, strong=0, bold=False, dashed=True)
    sheet.box(14, 236, NARROW - 28, 48, "the CPU computes all of it")
    return sheet


def verdicts() -> Sheet:
    """List what is real and what is not."""
    sheet, y = Sheet(NARROW, HIGH), 26
    sheet.words(0, y, "What you see is", bold=True, size=SIZE + 2)
    for name, text in REAL:
        y += 38
        sheet.words(0, y, "✓ real", bold=True)
        sheet.words(70, y, name, bold=True)
        sheet.words(70, y + 17, text)
    sheet.wrong(0, y + 42, "not real:")
    sheet.words(100, y + 42, "speed", bold=True)
    sheet.words(100, y + 59, "times are estimated")
    return sheet


def draw(width: int) -> Sheet:
    """Draw the process and the list."""
    return halves(width, process(), verdicts(), apart=GAP // 3)
