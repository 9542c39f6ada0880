"""The picture of the page on other people's tests: how each of them ended."""

from allranks.base.picture import Picture
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import fill, plate, wide

SIDE = 30  # px, of a test's square
KINDS = {"passed": "plain", "skipped": "empty", "failed": "wrong"}


def ends(groups: dict[str, dict[str, int]]) -> Picture:
    """Draw a square for each test, by group and by how it ended.

    Args:
        groups: for each group, how many tests ended in each way.
    """
    # CS336 has 8, nanochat 3.
    total = sum(group.get(end, 0) for group in groups.values() for end in KINDS)
    passed = sum(group.get("passed", 0) for group in groups.values())

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 0)
        # On a phone a group's name stands above its squares.
        left, step = (236, 0) if wide(sheet) else (0, 26)
        for line, (name, group) in enumerate(groups.items()):
            y = (SIDE + 14 + step) * line
            sheet.words(0, y + 21, name)
            squares = [kind for end, kind in KINDS.items() for _ in range(group[end])]
            for i, kind in enumerate(squares):
                fill(sheet, left + (SIDE + 6) * i, y + step, SIDE, SIDE, kind)
        y, x = (SIDE + 14 + step) * len(groups) + 4, 0.0
        for end, kind in KINDS.items():
            fill(sheet, x + 1, y, 16, 16, kind)
            sheet.words(x + 26, y + 13, end)
            x += width / 3 if not wide(sheet) else 130
        sheet.height = y + 20
        return sheet

    said = "; ".join(
        f"{name}: {', '.join(f'{group[end]} {end}' for end in KINDS)}"
        for name, group in groups.items()
    )
    return plate(
        f"{passed} of {total} tests pass with this book's classes", f"{said}.", draw
    )
