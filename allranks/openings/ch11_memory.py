"""One training step on one GPU: what is in memory, by kind, over time."""

from collections.abc import Callable
from itertools import groupby

from allranks.base.svg import RANK_COLORS
from allranks.openings.sheet import Sheet
from allranks.topics.memory import sums

MODEL, LAYERS = sums.MODELS["gpt2xl"][1], 4  # a stair is so many layers
STEP = sums.step(MODEL, sums.Training(4, "fp32", "fused"))
# From the ground up, each with its depth of the hue.
KINDS = {"weights": 0.42, "Adam": 0.26, "gradients": 0.55, "activations": 0.14}
KINDS |= {"logits": 0.9}
Stair = tuple[float, float, dict[str, float]]  # start, end, 10⁹ bytes by kind


def stairs() -> list[Stair]:
    """Return the parts of a step; some layers are taken together.

    >>> [round(sum(held.values())) for *_, held in stairs()[::4]]
    [19, 25, 32, 39, 39, 36, 31, 26]
    """

    def stair(span: sums.Span) -> str:
        what, _, number = span.name.rpartition(" ")
        block = what == "block"
        return span.phase + (f" {int(number) // LAYERS}" if block else span.name)

    found = []
    for _, group in groupby(STEP, stair):
        spans = list(group)
        most = max(spans, key=lambda span: sum(span.held))
        found.append((spans[0].start, spans[-1].end, held(most)))
    return found


def held(span: sums.Span) -> dict[str, float]:
    """Sort what a part of the step holds; what lives for a moment counts as logits.

    >>> {kind: round(size, 1) for kind, size in held(STEP[-1]).items()}
    {'weights': 6.2, 'Adam': 12.5, 'gradients': 6.2, 'activations': 0.0, 'logits': 0.0}
    """
    kinds = dict(zip(sums.KINDS, span.held, strict=True))
    logits = kinds["logits"]
    if span.phase == "loss" or (span.phase, span.name) == ("forward", "head"):
        logits += kinds["temporary"]
    sizes = kinds["weights"], kinds["optimizer"], kinds["gradients"]
    sizes += kinds["activations"], logits
    return {kind: size / 1e9 for kind, size in zip(KINDS, sizes, strict=True)}


STAIRS = stairs()
PEAK = max(STAIRS, key=lambda stair: sum(stair[2].values()))
MOST = {kind: max(stair[2][kind] for stair in STAIRS) for kind in KINDS}
ALT = (
    "Memory over the time of one training step of a GPT with 1.6 billion parameters, "
    f"in float32. At the bottom lie the weights, {MOST['weights']:.1f} GB, and on "
    f"them Adam's state, {MOST['Adam']:.1f} GB; both are there all the time. On top, "
    f"activations climb to {MOST['activations']:.0f} GB in forward, layer by layer. "
    f"The peak, {sum(PEAK[2].values()):.0f} GB, is at the end of forward, where the "
    f"logits add {PEAK[2]['logits']:.1f} GB for a moment. In backward the activations "
    f"go, and gradients grow to {MOST['gradients']:.1f} GB, until the optimizer has "
    "made its step."
)
TOP, HIGH = 44, 300  # of the plot


def draw(width: int) -> Sheet:
    """Draw the mountain: a layer of rock for each kind, and a flag at its peak."""
    sheet, end = Sheet(width, TOP + HIGH + 34), STAIRS[-1][1]
    most = sum(PEAK[2].values())

    def x(time: float) -> float:
        return (width - 1) * time / end  # a stroke reaches over the last edge

    def y(size: float) -> float:
        return TOP + HIGH * (1 - size / most)

    # A layer's outline: along its upper edge, and back along the lower one.
    low = [0.0] * len(STAIRS)
    for kind, depth in KINDS.items():
        high = [a + held[kind] for a, (*_, held) in zip(low, STAIRS, strict=True)]
        over, under = [], []
        for (start, stop, _), a, b in zip(STAIRS, low, high, strict=True):
            over += [(x(start), y(b)), (x(stop), y(b))]
            under += [(x(start), y(a)), (x(stop), y(a))]
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in corners(over + under[::-1]))
        style = f"fill:{RANK_COLORS[0]};fill-opacity:{depth};stroke:{RANK_COLORS[0]}"
        sheet.parts.append(f'<path d="M{path}Z" style="{style}"/>')
        low = high
    name(sheet, x, y)
    turn, done = PEAK[0], STEP[-1].start
    phases = (0.0, turn, "forward"), (turn, done, "backward"), (done, end, "step")
    for start, stop, phase in phases:
        place = x(start), TOP + HIGH + 8, x(stop) - x(start), 24
        sheet.box(*place, phase, bold=False)
    return sheet


def name(sheet: Sheet, x: Callable, y: Callable) -> None:
    """Write on each layer of rock what it is, and plant the flag."""
    first, last, most = STAIRS[0][2], STAIRS[-1][2], sum(PEAK[2].values())
    ground = first["weights"] + first["Adam"]
    text = f"weights: {first['weights']:.1f} GB"
    sheet.words(10, y(first["weights"] / 2) + 5, text)
    text = f"Adam's state: {first['Adam']:.1f} GB, always there"
    sheet.words(10, y(first["weights"] + first["Adam"] / 2) + 5, text)
    # At the right end gradients are thick enough for two lines, on a phone, too.
    size = f"{last['gradients']:.1f} GB"
    for line, text in enumerate(("gradients", size)):
        sheet.words(sheet.width - 6, y(ground) - 8 - 18 * line, text, "end")
    flag, right = x((PEAK[0] + PEAK[1]) / 2), x(PEAK[1])
    size = f"up to {MOST['activations']:.0f} GB"
    for line, text in enumerate(("activations", size)):
        sheet.words(right + 8, y(ground) - 78 + 19 * line, text)
    pole = f"M{flag:.1f} {TOP}V10l14 7l-14 7"
    style = "fill:currentColor;stroke:currentColor;stroke-width:2"
    sheet.parts.append(f'<path d="{pole}" style="{style}"/>')
    sheet.words(flag + 20, 22, f"the peak: {most:.0f} GB", bold=True)
    sheet.words(right + 8, TOP + 8, f"logits: {PEAK[2]['logits']:.1f} GB")


def corners(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leave out what lies between two points of the same height.

    >>> corners([(0, 1), (2, 1), (3, 1), (3, 2)])
    [(0, 1), (3, 1), (3, 2)]
    """
    found: list[tuple[float, float]] = []
    for point in points:
        if len(found) > 1 and found[-1][1] == found[-2][1] == point[1]:
            found.pop()
        found.append(point)
    return found
