"""Chapter 9 - Padding: batch texts of one length, or share rows among them.

Run it (no GPU needed):
    python scripts/ch9_padding.py
"""

import job  # first, since importing torch takes seconds

import random
import re

import torch

from tasks import read_text

CONTEXT = 256  # bytes in a row, and in the longest sentence


def sentences(text: torch.Tensor) -> list[torch.Tensor]:
    """Cut a text into its sentences of at most CONTEXT bytes."""
    found = re.findall(rb"[^.!?]+[.!?]", bytes(text.tolist()))
    clean = [b" ".join(sentence.split()) for sentence in found]
    return [torch.tensor(list(s)) for s in clean if 1 < len(s) <= CONTEXT]


def in_batches(texts: list, size: int) -> list[list]:
    """Cut a list into batches, the last of which may be smaller."""
    return [texts[i : i + size] for i in range(0, len(texts), size)]


def bucket(texts: list, size: int) -> list[list]:
    """Batch texts of similar length: sort 16 batches' worth at a time."""
    parts = [sorted(some, key=len) for some in in_batches(texts, 16 * size)]
    return [batch for some in parts for batch in in_batches(some, size)]


def fill(texts: list) -> list[list]:
    """Put each text into the first of 64 rows where it fits, or a new one."""
    rows = []
    for text in texts:
        for row in rows[-64:]:
            if sum(map(len, row)) + len(text) <= CONTEXT:
                row.append(text)
                break
        else:
            rows.append([text])
    return rows


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, batch_size=16, seed=0).parse_args(argv)


def main(args) -> None:
    """Count the padding in three kinds of batch."""
    texts, size = sentences(read_text()[0]), args.batch_size
    random.Random(args.seed).shuffle(texts)
    ways = {"as they come": in_batches(texts, size)}
    ways["in buckets"] = bucket(texts, size)
    ways["packed"] = [[torch.empty(CONTEXT)]] * len(fill(texts))
    for name, batches in ways.items():
        positions = sum(len(batch) * max(map(len, batch)) for batch in batches)
        padding = 1 - sum(map(len, texts)) / positions
        job.put(f"{name}: {padding:.2f} of the positions are padding")


if __name__ == "__main__":
    main(parse_args())
