"""Pictures of the page Start here: a batch on four ranks, and their speed."""

from allranks.base.picture import Picture
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import Row, bars, claim, fill, plate, read, wide


def batch(given: str) -> Picture:
    """Draw one process with a batch, and ranks that share it.

    Args:
        given: the batch and the number of ranks, such as ``128 4``.
    """
    size, num = map(int, given.split())
    each = size // num

    def draw(width: int) -> Sheet:
        sheet, high = Sheet(width, 0), 40
        inside = wide(sheet)
        room = width - (120 if inside else 0)
        unit = room / num
        sheet.words(0, 15, "one process", bold=True)
        fill(sheet, 0, 24, room - 4, high, "plain")
        sheet.words(room / 2, 49, f"{size} samples: one gradient", "middle")
        sheet.words(0, 98, f"{num} ranks", bold=True)
        for rank in range(num):
            x = unit * rank
            texts = (
                (f"rank {rank}", f"{each} samples")
                if inside
                else (f"{rank}", f"{each}")
            )
            sheet.box(x, 108, unit - 4, 50, *texts, rank=rank, strong=0.3)
            # Each rank's gradient goes into the mean.
            middle = x + unit / 2 - 2
            sheet.arrow(f"{middle:.4g},160 {middle:.4g},186", thick=2)
        sheet.box(0, 190, room - 4, high, strong=0.05)
        sheet.words(room / 2, 213, "the mean of the gradients, on all ranks", "middle")
        for rank in range(num):
            fill(
                sheet, unit * rank, 223, unit - 4 * (rank == num - 1), 7, "strong", rank
            )
        if inside:
            sheet.words(room + 8, 130, "equal", bold=True)
            sheet.arrow(f"{room + 26},112 {room + 26},50", thick=2)
            sheet.arrow(f"{room + 26},140 {room + 26},206", thick=2)
            sheet.arrow(f"{room + 26},206 {room},206", thick=2)
            sheet.arrow(f"{room + 26},50 {room},50", thick=2)
        sheet.height = 232
        return sheet

    return plate(
        f"{num} ranks with {each} samples each take the same step as one process "
        f"with {size}",
        f"One process computes one gradient from {size} samples. {num} ranks compute "
        f"one each, from {each} samples; the mean of these, which all ranks get, is "
        "equal to it.",
        draw,
    )


def speed(output: str) -> Picture:
    """Draw the samples per second in the last epoch, by the number of ranks."""
    found: dict[str, int] = {}
    read(output, r"^\$ .*start_(?:single|ddp)\.py", 2)
    for part in output.split("$ ")[1:]:
        ranks = read(part, r"nproc-per-node (\d+)|(start_single)")[0]
        several = "s" * (ranks[1] != "1")
        name = f"{ranks[1]} rank{several}" if ranks[1] else "first script"
        found[name] = int(read(part, r"(\d+) samples/s")[-1][1])
    speeds = list(found.values())
    title = claim(
        speeds == sorted(speeds, reverse=True),
        "On two cores, more ranks are slower: they share what one process had",
    )
    rows = [Row(name, [(n, "plain")], f"{n:,} samples/s") for name, n in found.items()]
    alt = "Samples per second: " + "; ".join(f"{r.name}: {r.said}" for r in rows)
    return plate(title, alt, lambda width: bars(width, rows, speeds[0], 90, 175))
