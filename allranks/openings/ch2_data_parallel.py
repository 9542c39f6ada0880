"""One process whose first GPU serves the others, or one process per GPU."""

from allranks.openings.sheet import MUTED, NARROW, SIZE, Sheet, halves

ALT = (
    "Left, nn.DataParallel: one process with four GPUs. GPU 0 holds the model, the "
    "optimizer and all outputs; in every step it sends a copy of the model and a shard "
    "of the batch to the GPUs 1 to 3, and gathers outputs and gradients. On a time "
    "line GPU 0 is always busy, while the others wait before forward, between forward "
    "and backward, and after it. Right, DDP: "
    "four processes with one GPU each. Each keeps its own model and optimizer, all do "
    "the same at the same time, and in backward they average their gradients."
)
HIGH, TOP, ROW, LEFT = 392, 268, 28, 62  # the lanes: first, pitch, where they begin
# What each lane does: (what, from, to), in parts of a step.
FIRST = (
    ("copies", 0, 20),
    ("forward", 20, 44),
    ("loss", 44, 58.5),
    ("backward", 58.5, 86),
    ("step", 86, 100),
)
OTHERS = [part if "ward" in part[0] else ("wait", *part[1:]) for part in FIRST]
EQUAL = (("forward", 0, 24), ("backward, average", 24, 86), ("step", 86, 100))


def lanes(sheet: Sheet, works: list[tuple], note: str) -> None:
    """Draw who works when in one step; waiting is red."""
    sheet.words(0, TOP - 10, note, color=MUTED)
    unit = (NARROW - LEFT) / 100
    for rank, parts in enumerate(works):
        y = TOP + rank * ROW
        sheet.words(0, y + 16, f"GPU {rank}", bold=True)
        for what, start, end in parts:
            place = (LEFT + start * unit, y, (end - start) * unit - 2, ROW - 5)
            name = what if 9 * len(what) < place[2] else ""
            if what == "wait":
                sheet.waits(*place, name)
            else:
                sheet.box(*place, name, rank=rank, bold=False, strong=0.3)


def data_parallel() -> Sheet:
    """Draw one process, in which GPU 0 has most to hold."""
    sheet = Sheet(NARROW, HIGH)
    sheet.words(0, 18, "nn.DataParallel: one process", bold=True, size=SIZE + 2)
    sheet.frame(1, 32, NARROW - 2, 196, dashed=True)
    sheet.box(12, 46, 112, 168, rank=0, strong=0.3)
    texts = ("GPU 0", "the model", "optimizer", "all outputs", "the loss")
    for i, text in enumerate(texts):
        sheet.words(68, 76 + i * 29, text, "middle", bold=not i)
    for rank in (1, 2, 3):
        y = 46 + (rank - 1) * 58
        sheet.box(226, y, 114, 52, f"GPU {rank}", "a copy", rank=rank)
        sheet.arrow(f"126,{y + 16} 224,{y + 16}")
        sheet.arrow(f"224,{y + 37} 126,{y + 37}")
    sheet.words(175, 57, "copy", "middle")
    sheet.words(175, 101, "results", "middle")
    lanes(sheet, [FIRST, OTHERS, OTHERS, OTHERS], "In every step, GPU 0 serves all:")
    return sheet


def ddp() -> Sheet:
    """Draw four processes that hold the same and exchange gradients."""
    sheet = Sheet(NARROW, HIGH)
    sheet.words(0, 18, "DDP: one process per GPU", bold=True, size=SIZE + 2)
    for rank in range(4):
        left = rank * 89
        sheet.frame(left + 1, 32, 83, 142, dashed=True)
        sheet.box(left + 7, 40, 71, 126, rank=rank, strong=0.3)
        for i, text in enumerate((f"GPU {rank}", "model", "optim.", "outputs")):
            sheet.words(left + 42.5, 66 + i * 29, text, "middle", bold=not i)
        sheet.arrow(f"{left + 42.5},176 {left + 42.5},198", both=True)
    sheet.box(0, 200, NARROW, 28, "average the gradients")
    lanes(sheet, [EQUAL] * 4, "In every step, all do the same:")
    return sheet


def draw(width: int) -> Sheet:
    """Draw both."""
    return halves(width, data_parallel(), ddp())
