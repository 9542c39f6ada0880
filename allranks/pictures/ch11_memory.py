"""Pictures of chapter 11: what checkpoints keep and cost, and memory in pieces."""

from collections.abc import Sequence

from allranks.base.picture import Picture
from allranks.openings.sheet import Sheet
from allranks.pictures.chart import (
    BAR,
    Row,
    bars,
    claim,
    fill,
    in_two,
    percent,
    plate,
    read,
)

# Llama 3 8B's width and words, a sample's tokens, and those of a chunk.
DIM, WORDS, TOKENS, CHUNK = 4096, 128256, 8192, 256
LINKS, FLOPS = {"PCIe 5": 63e9, "NVLink-C2C": 450e9}, 400e12  # bytes/s; FLOP/s
TAKEN, GPU = (6, 4), 12  # GB: torch's segments, and all memory of the GPU
TENSORS, ASKED = (5, 3), 4  # of the next batch, and what is asked for then


def ways(output: str) -> Picture:
    """Draw what each kind of checkpoint keeps, and the operations that it takes."""
    pattern = r"^(\w[\w, ]*?)  +([\d.]+) +[\d.]+ +[\d.]+ +\d+% +(\d+)%$"
    lines = read(output, pattern, 5)
    kept = {line[1]: float(line[2]) for line in lines}
    took = {line[1]: int(line[3]) for line in lines}
    everything, *_, torchs, some = kept
    title = claim(
        kept[torchs] < kept[some] < kept[everything]
        and took[everything] < took[some] < took[torchs] < took["ours"],
        "A selective checkpoint keeps about half and recomputes hardly anything",
    )
    most = kept[everything]

    def row(sheet: Sheet, name: str, y: float, left: float, half: float) -> None:
        long = (half - 90) * kept[name] / most
        fill(sheet, left, y, long, BAR, "plain", rank=0)
        sheet.words(left + long + 8, y + 17, f"{kept[name]:.1f} MB", bold=True)
        scale = (half - 70) / max(took.values())
        fill(sheet, left + half, y, scale * 100, BAR, "plain")
        if took[name] > 100:  # what is computed again is darker
            again = scale * (took[name] - 100)
            fill(sheet, left + half + scale * 100, y, again, BAR, "strong")
        end = left + half + scale * took[name] + 8
        sheet.words(end, y + 17, f"{took[name]} %", bold=True)

    draw = in_two(list(kept), ("kept for backward", "operations"), 160, row)
    said = "; ".join(f"{n}: {kept[n]:.1f} MB, {took[n]} %" for n in kept)
    return plate(title, f"What is kept, and operations of a step. {said}.", draw)


def chunks() -> Picture:
    """Draw what logits take at the peak, as a whole and in chunks."""
    logits, chunk = (4 * num * WORDS / 1e9 for num in (TOKENS, CHUNK))
    gradient = 4 * DIM * WORDS / 1e9  # of the last layer's weights
    whole, small = 3 * logits, gradient + 3 * chunk
    title = claim(
        4 * small < whole,
        f"A sample of {TOKENS:,} tokens takes {whole:.1f} GB for logits, or "
        f"{small:.1f} GB in chunks",
    )
    rows = [
        Row("all tokens at once", [(logits, "plain")] * 3, f"{whole:.1f} GB", 0),
        Row(
            f"{CHUNK} at a time",
            [(gradient, "strong"), *[(chunk, "plain")] * 3],
            f"{small:.1f} GB",
            0,
        ),
    ]
    alt = (
        f"With all tokens at once, three tensors of {logits:.1f} GB. In chunks, the "
        f"last layer's gradient, {gradient:.1f} GB, and three tensors of {chunk:.2f} "
        "GB."
    )
    return plate(title, alt, lambda width: bars(width, rows, whole, 160, 80))


def share(dim: int, rate: float) -> float:
    """Return which part of a GPT's activations leaves while the GPU computes.

    In forward a block computes 24 dim² operations for each token, and keeps 16 dim
    numbers of 2 bytes.

    >>> share(4096, 63e9), share(16384, 63e9)
    (0.48384, 1.0)
    """
    return min(1.0, 24 * dim * dim / FLOPS * rate / (32 * dim))


def hidden() -> Picture:
    """Draw which part of the activations leaves without a wait, by width and link."""
    shares = {
        (name, dim): share(dim, rate)
        for name, rate in LINKS.items()
        for dim in (1024, 4096, 16384)
    }
    slow, fast = LINKS
    title = claim(
        shares[slow, 4096] < 0.5 < shares[slow, 16384] == shares[fast, 4096] == 1,
        "The wider the model, the more activations can be offloaded for free",
    )
    rows = [
        Row(f"{name}, width {dim:,}", [(part, "travels")], percent(part))
        for (name, dim), part in shares.items()
    ]
    alt = "Parts that leave: " + "; ".join(f"{r.name}: {r.said}" for r in rows)
    return plate(title, alt, lambda width: bars(width, rows, 1, 210, 70))


def best_fit(pieces: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Put tensors into free pieces, each into the smallest that is large enough.

    Returns:
        for each piece the sizes of its tensors, and what is left, which may be 0.

    Raises:
        ValueError: if a size finds no piece.

    >>> best_fit((6, 4), (5, 3)), best_fit((12,), (5, 3, 4))
    ([[5, 1], [3, 1]], [[5, 3, 4, 0]])
    """
    found = [[piece] for piece in pieces]
    for size in sizes:
        fitting = [parts for parts in found if parts[-1] >= size]
        if not fitting:
            raise ValueError(f"no piece of {size}")
        smallest = min(fitting, key=lambda parts: parts[-1])
        smallest[-1:] = [size, smallest[-1] - size]
    return found


def pieces() -> Picture:
    """Draw how free memory ends up in pieces, and what segments that grow change."""
    cut = best_fit(TAKEN, TENSORS)
    left = [parts[-1] for parts in cut] + [GPU - sum(TAKEN)]
    title = claim(
        max(left) < ASKED <= sum(left),
        f"{sum(left)} GB is free, but a tensor of {ASKED} GB does not fit",
    )
    whole = best_fit((GPU,), (*TENSORS, ASKED))
    first, second = TENSORS
    # A text, the segments with their tensors (the last number is free), and a fault.
    rows = [
        ("tensors of 6 and 4 GB; 2 GB not taken", [[6, 0], [4, 0]], ""),
        ("freed: torch keeps both segments", [[6], [4]], ""),
        (f"the next batch: {first} and {second} GB", cut, ""),
        (f"it asks for {ASKED} GB more", cut, f"no place for {ASKED}"),
        ("the same with segments that grow", whole, ""),
    ]

    def draw(width: int) -> Sheet:
        sheet, scale = Sheet(width, 62 * len(rows) - 8), width / GPU
        for number, (text, segments, fault) in enumerate(rows):
            y, x = 24 + 62 * number, 0.0
            sheet.words(0, y - 6, text)
            for parts in segments:
                for size in parts[:-1]:
                    sheet.box(x, y, scale * size - 2, 26, f"{size}", rank=0, strong=0.4)
                    x += scale * size
                if rest := parts[-1]:
                    fill(sheet, x + 1, y + 1, scale * rest - 4, 24, "empty")
                    sheet.words(x + scale * rest / 2 - 1, y + 18, f"{rest}", "middle")
                    x += scale * rest
            if x < width - 1:
                rest = f"{GPU - sum(map(sum, segments))}"
                sheet.words((x + width) / 2, y + 18, rest, "middle")
            if fault:
                sheet.wrong(width - 4, y - 6, fault, "end")
        return sheet

    said = "; ".join(
        f"{text}: {', '.join(map(str, segments))} {fault}".strip()
        for text, segments, fault in rows
    )
    alt = f"A GPU of {GPU} GB in steps; the last number of a segment is free. {said}."
    return plate(title, alt, draw)
