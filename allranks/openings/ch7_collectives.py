"""What a collective costs: a part per step, and a part per byte."""

from allranks.openings.sheet import NARROW, SIZE, Sheet
from allranks.topics.collectives.costs import cost

RANKS, ALPHA_S, BYTES_PER_S = 8, 10e-6, 50e9
SIZES = {"1 kB": 1e3, "1 MB": 1e6, "1 GB": 1e9}


def parts(algorithm: str, num_bytes: float) -> tuple[float, float]:
    """Return the seconds of an all_reduce that go into steps, and into bytes.

    >>> [round(1e6 * s) for s in parts("ring", 1e6)]
    [140, 35]
    """
    steps, share = cost("all_reduce", algorithm, RANKS)
    return steps * ALPHA_S, share * num_bytes / BYTES_PER_S


def spoken(seconds: float) -> str:
    """Return seconds in words, with two digits or so."""
    return f"{1e6 * seconds:.0f} µs" if seconds < 1e-3 else f"{1e3 * seconds:.0f} ms"


def sentence(label: str, num_bytes: float) -> str:
    """Return a sentence about both algorithms at one size."""
    times = {name: sum(parts(name, num_bytes)) for name in ("tree", "ring")}
    return f"{label}: tree {spoken(times['tree'])}, ring {spoken(times['ring'])}."


ALT = (
    f"An all_reduce over {RANKS} ranks on a link with 10 µs per message and 50 GB/s, "
    "as a tree and as a ring. Each bar has a part for steps and a part for bytes. "
    + " ".join(sentence(*size) for size in SIZES.items())
    + " A small tensor pays for steps, so the tree wins; a large one pays for bytes, "
    "so the ring wins."
)
ROW, BAR = 104, 30


def draw(width: int) -> Sheet:
    """Draw two bars for each size, drawn to a scale of its own."""
    lines = [f"all_reduce over {RANKS} ranks,", "10 µs per message, 50 GB/s"]
    if width > NARROW:
        lines = [" ".join(lines)]
    top = 52 + 20 * len(lines)  # of the first row
    sheet = Sheet(width, top + ROW * len(SIZES) - 12)
    for number, line in enumerate(lines):
        sheet.words(0, 18 + 20 * number, line, bold=True, size=SIZE + 2)

    def step(*place: float) -> None:
        sheet.box(*place, strong=0.55)

    y = 18 + 20 * len(lines)
    for x, draw_part, text in (0, step, "steps"), (110, sheet.hatched, "bytes"):
        draw_part(x, y - 5, 22, 14)
        sheet.words(x + 30, y + 7, text)
    room = width - 48 - 84  # between an algorithm's name and its time
    for row, (label, num_bytes) in enumerate(SIZES.items()):
        y = top + ROW * row
        sheet.words(0, y + 14, label, bold=True)
        longest = max(sum(parts(name, num_bytes)) for name in ("tree", "ring"))
        for bar, name in enumerate(("tree", "ring")):
            x, place = 48, y + 22 + bar * (BAR + 4)
            sheet.words(0, place + 20, name)
            both = parts(name, num_bytes)
            for draw_part, seconds in zip((step, sheet.hatched), both, strict=True):
                long = room * seconds / longest
                if long >= 1:
                    draw_part(x, place, long, BAR)
                x += long
            sheet.words(x + 8, place + 20, spoken(sum(both)), bold=True)
    return sheet
