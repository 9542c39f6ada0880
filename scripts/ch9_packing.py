"""Chapter 9 - Packing: a row of several texts, none of which sees another.

Run it (no GPU needed):
    python scripts/ch9_packing.py
"""

import job  # first, since importing torch takes seconds

import random

import torch
from torch import nn

from ch9_padding import CONTEXT, sentences
from tasks import GPT, read_text


def pack_row(texts: list) -> tuple:
    """Make one row of texts: bytes (1, T), mask (T, T) and positions (T,)."""
    lengths = torch.tensor([len(text) for text in texts])
    owner = torch.arange(len(texts)).repeat_interleave(lengths)
    mask = (owner[:, None] == owner).tril()  # blocks on the diagonal
    positions = torch.cat([torch.arange(len(text)) for text in texts])
    return torch.cat(texts)[None], mask, positions


def leaks(net: nn.Module, texts: list) -> list[float]:
    """Return how far logits are from each text's own: packed, and unmasked."""
    device = net.head.weight.device
    x, mask, positions = (part.to(device) for part in pack_row(texts))
    alone = torch.cat([net(text[None].to(device))[0] for text in texts])
    packed = [net(x, seen, positions)[0] for seen in (mask, None)]  # (T, 256)
    return [(logits - alone).abs().max().item() for logits in packed]


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, seed=0).parse_args(argv)


def main(args) -> None:
    """Pack five sentences, and look for leaks."""
    texts = sentences(read_text()[0])
    random.Random(args.seed).shuffle(texts)
    torch.manual_seed(args.seed)
    net = GPT(context=CONTEXT).double()
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu and gpu.type != "mps":  # a Mac's GPU has no float64
        net.to(gpu)
    with torch.no_grad():
        packed, unmasked = leaks(net, texts[:5])
    changes = f"{packed:.0e}, without the mask by {unmasked:.2f}"
    job.put(f"packing changes logits by {changes}")


if __name__ == "__main__":
    main(parse_args())
