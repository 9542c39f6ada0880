"""What each version of DDP sends, and when: after backward, or while it goes on."""

from allranks.openings.sheet import Sheet

GRADIENTS = 8  # of a backward pass, which takes a unit of time for each
ALPHA, BYTES = 0.75, 6.0  # units of time: for each message, and for all gradients
VERSIONS = {
    "a message per parameter": (1, False),
    "one message": (GRADIENTS, False),
    "buckets, during backward": (2, True),
}
BACKWARD = 0.3  # depth of gray: what all ranks do alike has no rank's hue


def messages(size: int, during: bool) -> list[tuple[float, float]]:
    """Return when each message starts and ends, if each carries ``size`` gradients.

    >>> messages(4, during=True)
    [(4.0, 7.75), (8.0, 11.75)]
    """
    found, free = [], 0.0
    for ready in range(size, GRADIENTS + 1, size):
        start = max(free, float(ready if during else GRADIENTS))
        free = start + ALPHA + BYTES * size / GRADIENTS
        found.append((start, free))
    return found


ENDS = {name: messages(*how)[-1][1] for name, how in VERSIONS.items()}
ALT = (
    f"Three timelines of one backward pass with {GRADIENTS} gradients, those of the "
    "last layer first, and of the messages that average them. "
    + " ".join(f"{name}: done after {end:g} units." for name, end in ENDS.items())
    + " Only the last version sends while backward still computes."
)
LANE, ROW = 26, 108


def draw(width: int) -> Sheet:
    """Draw a row for each version: backward above, messages below."""
    sheet = Sheet(width, ROW * len(VERSIONS) + 30)
    sheet.box(0, 4, 22, 14, strong=BACKWARD)
    sheet.words(30, 16, "backward")
    sheet.hatched(124, 4, 22, 14)
    sheet.words(154, 16, "messages")
    unit = (width - 50) / max(ENDS.values())
    for row, (name, how) in enumerate(VERSIONS.items()):
        y = 36 + ROW * row
        sheet.words(0, y + 14, name, bold=True)
        for number in range(GRADIENTS):
            place = number * unit, y + 24, unit - 1, LANE
            layer = str(GRADIENTS - number)  # the last layer's gradient comes first
            sheet.box(*place, layer, strong=BACKWARD, bold=False)
        for start, end in messages(*how):
            place = start * unit, y + 28 + LANE, (end - start) * unit - 1, LANE
            sheet.hatched(*place)
        end = ENDS[name]
        sheet.words(end * unit + 8, y + 46 + LANE, f"{end:g}", bold=True)
    return sheet
