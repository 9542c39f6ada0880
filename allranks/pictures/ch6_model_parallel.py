"""Pictures of chapter 6: what each rank holds under DDP and under FSDP."""

from allranks.base.picture import Picture
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import claim, fill, key, plate, wide

KINDS = (("weights", 4, "strong"), ("gradient", 4, "plain"), ("optimizer", 8, "faint"))


def shares(given: str) -> Picture:
    """Draw the bytes that each rank holds: all of them, or a share.

    Args:
        given: billions of parameters, and the number of ranks, such as ``1 4``.
    """
    billions, num = given.split()
    billions, num = float(billions), int(num)
    total = billions * sum(size for _, size, _ in KINDS)
    title = claim(
        num > 1,
        f"DDP: {total:g} GB on each of {num} ranks. FSDP: {total / num:g} GB on each",
    )

    def draw(width: int) -> Sheet:
        inside = wide(Sheet(width, 0))
        sheet = Sheet(width, 26)
        key(sheet, 0, [(kind, name) for name, _, kind in KINDS])
        left, end = 64, 74
        scale = (width - left - end) / total
        high = 24
        for name, share in (
            ("DDP: every rank has it all", 1),
            ("FSDP: a shard each", num),
        ):
            y = sheet.height + 6
            sheet.words(0, y + 14, name, bold=True)
            for rank in range(num):
                top = y + 24 + (high + 6) * rank
                sheet.words(0, top + 17, f"rank {rank}")
                x = float(left)
                # FSDP cuts each kind into as many shards as there are ranks.
                for _, size, kind in KINDS:
                    long_ = billions * size * scale / share
                    fill(sheet, x, top, long_, high, kind, rank)
                    x += long_
                sheet.words(x + 8, top + 17, f"{total / share:g} GB", bold=True)
            sheet.height = y + 24 + (high + 6) * num + (6 if inside else 4)
        return sheet

    said = ", ".join(f"{billions * size:g} GB of {name}" for name, size, _ in KINDS)
    return plate(
        title,
        f"{billions:g} billion parameters with Adam in float32: {said}. Under DDP "
        f"each of "
        f"{num} ranks holds all {total:g} GB, under FSDP {total / num:g} GB.",
        draw,
    )
