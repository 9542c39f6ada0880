"""A model too large for one GPU, cut between its layers or inside of them."""

from allranks.openings.sheet import GAP, NARROW, SIZE, Sheet

ALT = (
    "Three drawings. First: a model of four layers does not fit into one GPU's memory; "
    "layers 3 and 4 stick out. Second: cut between the layers. GPU 0 has layers 1 and "
    "2, GPU 1 has layers 3 and 4; activations go from GPU 0 to GPU 1, gradients come "
    "back, and one GPU waits for the other. Third: cut inside the layers. Each GPU has "
    "half of each layer, both work at the same time, and they add up their parts after "
    "each pair of layers, with an all_reduce."
)
THIRD, HIGH, LAYER = 224, 312, 34  # a drawing's width and height, a layer's height


def layers(
    sheet: Sheet,
    x: float,
    y: float,
    width: float,
    names: list[str],
    rank: int | None = None,
) -> None:
    """Draw layers one below the other."""
    for i, name in enumerate(names):
        place = (x, y + i * (LAYER + 6), width, LAYER)
        look = {"dashed": True} if rank is None else {"rank": rank, "strong": 0.3}
        sheet.box(*place, name, bold=False, **look)


def begin(width: int, title: str, text: str) -> Sheet:
    """Return a sheet with a title that says what the drawing shows."""
    sheet = Sheet(width, HIGH)
    sheet.words(0, 16, title, bold=True, size=SIZE + 1)
    sheet.lines(0, 38, text, max(width, THIRD + 16))
    return sheet


def too_large(width: int) -> Sheet:
    """Draw four layers, of which two do not fit."""
    text = "The model needs more memory than one GPU has."
    sheet = begin(width, "One GPU: too small", text)
    layers(sheet, 30, 112, width - 60, ["layer 1", "layer 2"], 0)
    layers(sheet, 30, 204, width - 60, ["layer 3", "layer 4"])
    sheet.frame(14, 76, width - 28, 118, rank=0)
    sheet.words(width / 2, 100, "GPU 0's memory", "middle", bold=True)
    sheet.wrong(width / 2, 302, "do not fit", "middle")
    return sheet


def between(width: int) -> Sheet:
    """Draw the cut between layers 2 and 3."""
    text = "Pipeline: some layers per GPU, and some waiting."
    sheet = begin(width, "Cut between layers", text)
    middle = width / 2
    for rank, y in enumerate((76, 206)):
        sheet.frame(14, y, width - 28, 98, rank=rank)
        names = [f"layer {2 * rank + i}" for i in (1, 2)]
        layers(sheet, 76, y + 12, width - 104, names, rank)
        sheet.words(45, y + 46, "GPU", "middle", bold=True)
        sheet.words(45, y + 66, f"{rank}", "middle", bold=True)
    sheet.arrow(f"{middle - 6},177 {middle - 6},203", thick=2.5)
    sheet.arrow(f"{middle + 6},203 {middle + 6},177", thick=2.5)
    sheet.words(middle - 16, 195, "activations", "end")
    sheet.words(middle + 16, 195, "gradients")
    return sheet


def inside(width: int) -> Sheet:
    """Draw the cut through every layer."""
    text = "Tensor parallelism: a part of each layer per GPU."
    sheet = begin(width, "Cut inside layers", text)
    half = width / 2 - 6
    for rank in range(2):
        x = rank * (half + 12)
        sheet.frame(x, 76, half, 236, rank=rank)
        sheet.words(x + half / 2, 97, f"GPU {rank}", "middle", bold=True)
        for pair in range(2):
            names = [f"½ layer {2 * pair + i}" for i in (1, 2)]
            layers(sheet, x + 8, 106 + pair * 104, half - 16, names, rank)
    for y in (183, 287):
        sheet.blank(20, y, width - 40, 22)
        sheet.box(20, y, width - 40, 22, "all_reduce")
    return sheet


def draw(width: int) -> Sheet:
    """Draw the trouble and two ways out of it."""
    sheet = Sheet(width, 0)
    for i, drawing in enumerate((too_large, between, inside)):
        if width > NARROW:
            sheet.put(drawing(THIRD), i * (width - THIRD) / 2, 0)
        else:
            sheet.put(drawing(width), 0, i * (HIGH + GAP - 10))
    return sheet
