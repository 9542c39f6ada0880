"""A script for a cluster that runs on a laptop, and what the rehearsal says of it."""

from allranks.openings.sheet import GAP, NARROW, SIZE, Sheet, halves

NODES, PER_NODE = 2, 2
ALT = (
    "Left: train.py says cuda, nccl and set_device. It runs unchanged on a laptop, "
    f"as {NODES * PER_NODE} processes on {NODES} nodes with {PER_NODE} virtual GPUs "
    "each, whose collectives go through gloo, while the CPU computes. Right: what "
    "the rehearsal says at the end: who ran where, what fills each GPU's memory, "
    "which bytes each line sends, which samples are seen twice or never, who waits "
    "for whom. It does not say how fast the job will be."
)
SAID = (
    ("who ran where", "a GPU shared, one left idle"),
    ("memory", "what fills each GPU, by line"),
    ("traffic", "which line sends how many bytes"),
    ("data", "samples seen twice, or never"),
    ("hangs", "who waits where, and for whom"),
)
HIGH = 300


def laptop() -> Sheet:
    """Draw the script, and the nodes that it believes in."""
    sheet = Sheet(NARROW, HIGH)
    sheet.box(0, 0, NARROW, 52, "train.py, unchanged", "cuda · nccl · set_device")
    sheet.arrow(f"{NARROW / 2},56 {NARROW / 2},78")
    sheet.frame(0, 80, NARROW, HIGH - 80, dashed=True)
    wide = (NARROW - 3 * 12) / NODES
    for node in range(NODES):
        x = 12 + node * (wide + 12)
        sheet.frame(x, 92, wide, 136)
        sheet.words(x + wide / 2, 112, f"node {node}", "middle", bold=True)
        for local in range(PER_NODE):
            rank = node * PER_NODE + local
            place = (x + 10, 122 + local * 50, wide - 20, 42)
            sheet.box(*place, f"rank {rank}", f"cuda:{local}", rank=rank, strong=0.3)
    sheet.box(12, 240, NARROW - 24, 48, "one laptop without a GPU")
    return sheet


def report() -> Sheet:
    """List what is said at the end, and what is not."""
    sheet, y = Sheet(NARROW, HIGH), 16
    sheet.words(0, y, "The rehearsal says", bold=True, size=SIZE + 2)
    for name, text in SAID:
        y += 43
        sheet.words(0, y, name, bold=True)
        sheet.words(0, y + 17, text)
    sheet.wrong(0, y + 46, "not: how fast it will be")
    return sheet


def draw(width: int) -> Sheet:
    """Draw the laptop and the list."""
    return halves(width, laptop(), report(), apart=GAP // 3)
