"""Chapter 9 - Mean loss: every byte counts once, on whichever rank it is.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch9_mean_loss.py
"""

import job  # first, since importing torch takes seconds

import random

import torch
import torch.distributed as dist
from torch import nn

from ch9_padding import CONTEXT, in_batches, sentences
from tasks import GPT, read_text


def slope(net: nn.Module, parts: list) -> torch.Tensor:
    """Return the gradient of the bytes' losses / weight, summed over parts."""
    net.zero_grad()
    device = net.head.weight.device
    add_up = nn.CrossEntropyLoss(reduction="sum")
    for texts, weight in parts:
        for text in texts:
            text = text.to(device)
            logits = net(text[None, :-1])[0]  # (T - 1, 256)
            (add_up(logits, text[1:]) / weight).backward()
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
    truth, off = slope(net, [(everybody, total.item())]), {}
    for name, weights in ways.items():
        found = slope(net, list(zip(mine, weights, strict=True)))
        dist.all_reduce(found, dist.ReduceOp.AVG)  # DDP, too, divides by W
        off[name] = ((found - truth).norm() / truth.norm()).item()
    return off


def main(args, rank: int, world_size: int, device) -> None:
    """Compare three kinds of mean on micro-batches of two sentences."""
    texts, num = sentences(read_text()[0]), 2 * args.micro * world_size
    if num > (most := len(texts)):
        job.refuse(f"--micro {args.micro}: the text has {most} sentences")
    random.Random(args.seed).shuffle(texts)
    micro = in_batches(texts[:num], 2)
    torch.manual_seed(args.seed)  # the same weights on all ranks
    net = GPT(context=CONTEXT).double().to(device)
    errors = means(net, micro[rank::world_size], texts[:num])
    for name, error in errors.items() if rank == 0 else ():
        job.say(f"{name}: the gradient is off by {error:.3f}")


def parse_args(argv: list[str] | None = None):
    """Read the flags; --micro is the micro-batches of each rank."""
    return job.Flags(__doc__, micro=8, seed=0).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
