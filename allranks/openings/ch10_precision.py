"""A weight in bf16: a small step is rounded back, unless a copy collects the steps."""

from allranks.openings.sheet import MUTED, SIZE, Sheet

STEP, GAP = 0.003, 2.0**-7  # GAP: from 1 to the next bf16 number
STEPS = 4
BAR = 16  # high, so that a thumbnail shows it


def nearest(x: float) -> float:
    """Return the bf16 number next to x, which is between 1 and 2.

    >>> nearest(1.003), nearest(1.006)
    (1.0, 1.0078125)
    """
    return 1 + GAP * round((x - 1) / GAP)


def alone() -> list[float]:
    """Return a bf16 weight after each step, if it is rounded each time."""
    found = [1.0]
    for _ in range(STEPS):
        found.append(nearest(found[-1] + STEP))
    return found


def copied() -> tuple[list[float], list[float]]:
    """Return a float32 copy after each step, and the bf16 weight made from it."""
    exact = [1 + STEP * k for k in range(STEPS + 1)]
    return exact, [nearest(x) for x in exact]


def said(numbers: list[float]) -> str:
    """Return numbers as text, with the digits that tell them apart.

    >>> said([1.0, 1.0078125])
    '1, 1.0078'
    """
    return ", ".join(f"{x:.4f}".rstrip("0").rstrip(".") for x in numbers)


ALT = (
    f"A line of numbers from 1 to {1 + 2 * GAP:.4f} with the three that bf16 has "
    f"there. Above it, a weight of 1 takes {STEPS} steps of +{STEP}, and each of them "
    f"is rounded back: it is {said(alone())}. Below it, a float32 copy takes the same "
    f"steps, {said(copied()[0])}, and the bf16 weight made from it is "
    f"{said(copied()[1])}."
)


def draw(width: int) -> Sheet:
    """Draw both ways to keep a weight on one axis, step by step downwards."""
    sheet = Sheet(width, 420)
    left, right = 34, width - 44

    def place(x: float) -> float:
        return left + (right - left) * (x - 1) / (2 * GAP)

    def axis(y: float, label: str, steps: int) -> None:
        sheet.words(0, y - 30, label, bold=True, size=SIZE + 1)
        for k in range(3):
            x = place(1 + k * GAP)
            path = f"M{x:.1f} {y:.1f}v{26 * steps + 14}"
            style = f"fill:none;stroke:{MUTED};stroke-width:2"
            sheet.parts.append(f'<path d="{path}" style="{style}"/>')
            sheet.words(x, y - 8, said([1 + k * GAP]), "middle")
        for k in range(2):
            x = place(1 + (k + 0.5) * GAP)
            style = f"fill:none;stroke:{MUTED};stroke-dasharray:3 4"
            path = f"M{x:.1f} {y:.1f}v{26 * steps + 14}"
            sheet.parts.append(f'<path d="{path}" style="{style}"/>')

    def step(y: float, x: float) -> None:
        sheet.box(place(x), y, place(x + STEP) - place(x), BAR, strong=0.55)

    first, last = (said([x]) for x in (alone()[0], alone()[-1]))
    axis(52, f"bf16: {first} + {STEP} → {last}, each time", STEPS)
    for k, x in enumerate(alone()[:-1]):
        y = 62 + 26 * k
        step(y, x)
        back = f"{place(x + STEP):.1f},{y + 20} {place(nearest(x + STEP)):.1f},{y + 20}"
        sheet.arrow(back, color="currentColor", thick=1.5)
    sheet.words(0, 194, "bar: a step;  arrow: rounded back")
    exact, stored = copied()
    top = 254
    axis(top, "a float32 copy collects the steps", STEPS)
    for k in range(STEPS):
        y = top + 10 + 26 * k
        sheet.box(place(1), y, place(exact[k]) - place(1), BAR, strong=0.12)
        step(y, exact[k])
        x = place(stored[k + 1])  # below the bar, so that it hides nothing
        circle = f'<circle cx="{x:.1f}" cy="{y + 20}" r="5"'
        sheet.parts.append(f'{circle} style="fill:currentColor"/>')
    sheet.words(0, 396, "bar: the copy, with its last step;")
    sheet.words(0, 415, "dot: the bf16 weight made from it")
    return sheet
