"""What it saves and costs to recompute blocks: predicted, and measured.

Chapter 11 derives the formulas.
"""

import job

import time

import torch
from torch import nn

from ch11_memory import HEADS, make, predict, track

SIZES = {"words": 256, "width": 192, "layers": 4, "rounds": 4}


class DropoutBlock(nn.Module):
    """A block behind dropout, which self.run runs in one of the ways."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.body, self.run = nn.Sequential(nn.Dropout(0.1), block), None

    def forward(self, x, mask=None):
        """Map (B, T, dim) to the same."""
        return self.run(self.body, x)


def forward_backward(net, optimizer, x, y, note=lambda _: None) -> None:
    """Compute gradients, always with the same dice."""
    torch.manual_seed(0)
    loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
    note("loss")
    loss.backward()


def per_token(args) -> tuple[int, int]:
    """Return what a block keeps for a token, and the operations of forward."""
    dim = args.width
    kept = 17 * dim + 4 + HEADS  # dropout's mask is the 17th
    return kept, 24 * dim * dim + 2 * args.tokens * dim  # products, attention


def forecast(args, kept: int, redone: int) -> tuple[int, float]:
    """Return the bytes that are kept, and the time against keeping all."""
    dim, num = args.width, 4 * args.batch_size * args.tokens * args.layers
    rest = predict(args)["activations"] - num * (16 * dim + 4 + HEADS)
    forward = args.layers * per_token(args)[1] + 2 * dim * args.words
    ratio = 1 + args.layers * redone / (3 * forward)  # backward is 2 forwards
    return rest + num * kept, ratio


def compare(args, ways: dict) -> None:
    """Print bytes and times of some ways; refuse other gradients.

    ways: what runs a block, the numbers that it keeps for each token, and
    the operations that it redoes, as in ch11_checkpoint.by_hand.
    """
    torch.set_num_threads(1)  # times compare better
    net, optimizer, x, y = make(args)
    net.blocks = nn.ModuleList(map(DropoutBlock, net.blocks))
    clock = time.process_time if x.is_cpu else time.perf_counter
    found, times, grads = {}, {way: [] for way in ways}, {}
    for way in list(ways) * args.rounds:  # in turns
        for block in net.blocks:
            block.run = ways[way][0]
        optimizer.zero_grad()  # or what follows would add to the last way's
        if way not in found:
            found[way] = track(net, optimizer, x, y, forward_backward)
        for _ in range(2):  # the second finds memory as the first left it
            optimizer.zero_grad()
            start = clock()
            forward_backward(net, optimizer, x, y)
            net.head.bias.grad.sum().item()  # waits for a GPU
        times[way].append(clock() - start)
        grads[way] = [p.grad for p in net.parameters()]
    job.put("MB                     kept  formula     peak     time  formula")
    for way, (_, *numbers) in ways.items():
        kept, ratio = forecast(args, *numbers)
        loss, peak = found[way]["loss"], found[way]["peak"]["Total"]
        real = loss["Activation"] + loss["Other"] - 4  # the loss itself
        row = "".join(f"{n / 1e6:9.2f}" for n in (real, kept, peak))
        took = min(times[way]) / min(times["keep all"])
        job.put(f"{way:18}{row}{took:9.0%}{ratio:9.0%}")
        if not all(map(torch.equal, grads["keep all"], grads[way])):
            job.refuse(f"{way}: other gradients: that is a bug")
    job.put("all gradients are equal, bit for bit")
