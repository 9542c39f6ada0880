"""Chapter 9 - Sequences: pad less, pack without leaks, weigh every token once.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch9_packing.py
"""

import job  # first, since importing torch takes seconds

import random
import re

import torch
import torch.distributed as dist
from torch import nn

from tasks import GPT, read_text

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


def slope(net: nn.Module, parts: list) -> torch.Tensor:
    """Return the gradient of the bytes' losses / weight, summed over parts."""
    net.zero_grad()
    device, end = net.head.weight.device, torch.tensor([-100])  # not counted
    for texts, weight in parts:
        logits = net(*(part.to(device) for part in pack_row(texts)))[0].cpu()
        wanted = torch.cat([part for t in texts for part in (t[1:], end)])
        loss = nn.functional.cross_entropy(logits, wanted, reduction="sum")
        (loss / weight).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def means(net: nn.Module, mine: list[list], everybody: list) -> dict:
    """Return how far each mean is off, with a rank's micro-batches as mine."""
    counts = [sum(len(text) - 1 for text in texts) for texts in mine]
    total = torch.tensor(sum(counts), device=net.head.weight.device)
    dist.all_reduce(total)  # the bytes that all ranks predict in this step
    ways = {
        "mean of micro-batches": [len(mine) * count for count in counts],
        "mean of ranks": [sum(counts)] * len(mine),
        "mean of bytes": [total.item() / dist.get_world_size()] * len(mine),
    }
    truth, off = slope(net, [([t], total.item()) for t in everybody]), {}
    for name, weights in ways.items():
        found = slope(net, list(zip(mine, weights, strict=True)))
        dist.all_reduce(found, dist.ReduceOp.AVG)  # DDP, too, divides by W
        off[name] = ((found - truth).norm() / truth.norm()).item()
    return off


def main(args, rank: int, world_size: int, device) -> None:
    """Count padding, look for leaks, and compare three kinds of mean."""
    texts, num = sentences(read_text()[0]), args.micro * world_size
    random.Random(args.seed).shuffle(texts)
    if 2 * num > (most := len(texts)):
        job.refuse(f"--micro {args.micro}: the text has {most} sentences")
    ways = {"as they come": in_batches(texts, args.batch_size)}
    ways["in buckets"] = bucket(texts, args.batch_size)
    ways["packed"] = [[torch.empty(CONTEXT)]] * len(fill(texts))
    torch.manual_seed(args.seed)  # the same weights on all ranks
    net = GPT(context=CONTEXT).double().to(device)
    with torch.no_grad():
        packed, unmasked = leaks(net, texts[:5])
    micro = in_batches(texts[: 2 * num], 2)  # micro-batches of two sentences
    errors = means(net, micro[rank::world_size], texts[: 2 * num])
    if rank > 0:
        return
    for name, batches in ways.items():
        positions = sum(len(batch) * max(map(len, batch)) for batch in batches)
        padding = 1 - sum(map(len, texts)) / positions
        job.say(f"{name}: {padding:.2f} of the positions are padding")
    changes = f"{packed:.0e}, without the mask by {unmasked:.2f}"
    job.say(f"packing changes logits by {changes}")
    for name, error in errors.items():
        job.say(f"{name}: the gradient is off by {error:.3f}")


def parse_args(argv: list[str] | None = None):
    """Read the flags; --micro is the micro-batches of each rank."""
    numbers = {"batch_size": 16, "micro": 8, "seed": 0}
    return job.Flags(__doc__, **numbers).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
