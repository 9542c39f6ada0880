"""Between your script and a GPU stand a wheel, a driver and a machine."""

from allranks.openings.sheet import NARROW, Sheet, halves

ALT = (
    "Two ranks side by side. Each is a script on top of PyTorch's wheel, which brings "
    "CUDA and NCCL. Below both is the machine's driver, then one GPU for each rank, "
    "then the cores, the shared memory and the variables of the machine. Five things "
    "must match: the driver is new enough for the wheel's CUDA; the wheel has code for "
    "this GPU; nobody else fills the GPU; the ranks reach each other; there are enough "
    "cores and shared memory, and no variable is left over from yesterday."
)
MATCH = (
    ("Driver and wheel", "The driver is new enough for the wheel's CUDA."),
    ("Wheel and GPU", "The wheel has code for this GPU: it is no CPU build."),
    ("GPU and others", "Nobody else fills the GPU."),
    ("Rank and rank", "They reach each other: 1 + 2 is 3 on both."),
    ("Machine and job", "Cores and shared memory for each rank, no stale variables."),
)
WIDTH, HIGH = 156, 372  # of a rank's column, and of the stack


def stack() -> Sheet:
    """Draw two ranks on one machine, layer by layer."""
    sheet = Sheet(NARROW, HIGH)
    for rank, x in enumerate((0, NARROW - WIDTH)):
        middle = x + WIDTH / 2
        sheet.words(middle, 16, f"rank {rank}", "middle", bold=True)
        sheet.box(x, 26, WIDTH, 42, "your script", rank=rank, strong=0.3)
        sheet.frame(x, 80, WIDTH, 88, rank=rank)
        sheet.words(middle, 102, "PyTorch's wheel", "middle", bold=True)
        for place, name in enumerate(("CUDA", "NCCL")[:: -1 if rank else 1]):
            box = x + 8 + place * 72
            sheet.box(box, 114, 68, 44, name, rank=rank, bold=False)
        sheet.box(x, 272, WIDTH, 42, f"GPU {rank}", rank=rank, strong=0.3)
    sheet.box(0, 198, 288, 44, "the driver")
    sheet.box(0, 330, NARROW, 40, "cores, shared memory, variables", bold=False)
    sheet.arrow(f"{WIDTH - 6},136 {NARROW - WIDTH + 6},136", both=True)
    sheet.arrow("70,168 70,198", both=True)
    sheet.arrow("70,242 70,272", both=True)
    sheet.arrow("320,168 320,272", both=True)
    marks = ((70, 183), (320, 220), (WIDTH, 272), (NARROW / 2, 136), (NARROW - 14, 330))
    for number, (x, y) in enumerate(marks, 1):
        sheet.badge(x, y, f"{number}")
    return sheet


def matches() -> Sheet:
    """List what must match, one number after another."""
    sheet, y = Sheet(NARROW, 0), 24
    for number, (title, text) in enumerate(MATCH, 1):
        sheet.badge(13, y - 5, f"{number}")
        sheet.words(36, y, title, bold=True)
        y = sheet.lines(36, y + 19, text, NARROW - 36) + 12
    sheet.height = y - 24
    return sheet


def draw(width: int) -> Sheet:
    """Draw the layers, and what must match."""
    return halves(width, stack(), matches(), apart=12)
