"""Pictures of chapter 6: what each rank holds, and what crosses a cut."""

from allranks.base.picture import Picture
from allranks.base.units import amount
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import claim, fill, key, plate, read, wide

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
        f"each of {num} ranks holds all {total:g} GB, under FSDP {total / num:g} GB.",
        draw,
    )


def cut(output: str) -> Picture:
    """Draw the two parts of a model, and the copies that went across the cut."""
    first, second = read(output, r"part: (\d+) parameters on (\S+), ([\d.]+ MiB)", 2)[
        :2
    ]
    lines = read(output, r"^(\S+) +(\S+) +(\d+) +([\d,]+)$", 2)
    sent = {(m[1], m[2]): (m[3], int(m[4].replace(",", ""))) for m in lines}
    devices = first[2], second[2]
    if not {devices, devices[::-1]} <= sent.keys():
        raise ValueError(f"no copies between {devices[0]} and {devices[1]}: {[*sent]}")
    there, back = sent[devices], sent[devices[::-1]]
    title = claim(
        int(there[0]) > int(back[0]),
        f"Activations cross the cut {there[0]} times, and gradients {back[0]} times",
    )

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 186)
        box = (width - (260 if wide(sheet) else 84)) / 2
        for device, part in enumerate((first, second)):
            x = device * (width - box)
            texts = (part[2], f"peak {part[3]}", f"{int(part[1]):,}", "parameters")
            sheet.box(x, 0, box, 112, *texts, rank=device, strong=0.3)
        # Both arrows stand between the boxes; on a phone their words stand below.
        left, right = box + 4, width - box - 4
        sheet.arrow(f"{left:.4g},38 {right:.4g},38", thick=3)
        sheet.arrow(f"{right:.4g},78 {left:.4g},78", thick=3)
        texts = (
            f"→ {there[0]} × activations, {amount(there[1], 'B')}",
            f"← {back[0]} × gradients, {amount(back[1], 'B')}",
        )
        for i, text in enumerate(texts):
            sheet.words(width / 2, 142 + 24 * i, text, "middle", bold=True)
        return sheet

    return plate(
        title,
        f"{first[1]} parameters on {devices[0]}, {first[3]} at the peak; {second[1]} "
        f"on {devices[1]}, {second[3]}. {there[0]} copies of activations, {there[1]} "
        f"bytes, go to {devices[1]}; {back[0]} of gradients, {back[1]} bytes, come "
        "back.",
        draw,
    )
