"""Chapter 11 - Where memory goes: let each gradient go at once.

Run it (no GPU needed):
    python scripts/ch11_release.py
"""

import job  # first, since importing torch takes seconds

import warnings
from functools import partial

import torch

from ch11_memory import make, parse_args, step, track


class InBackward:
    """Make an optimizer's step for each weight when its gradient is there.

    Nobody can look at all gradients then, to clip them or to add more.
    """

    def __init__(self, params, make_optimizer) -> None:
        self.each, self.most = {p: make_optimizer([p]) for p in params}, 0
        for p in self.each:
            p.register_post_accumulate_grad_hook(self.update)

    def update(self, param: torch.Tensor) -> None:
        """Update a weight, and let its gradient go."""
        grads = [p.grad.nbytes for p in self.each if p.grad is not None]
        self.most = max(self.most, sum(grads))
        self.each[param].step()
        param.grad = None

    def step(self) -> None:
        """Do nothing: all is done."""

    zero_grad = step


def train(args, early: bool) -> tuple:
    """Return the peak of a third step, the most of gradients, and weights."""
    net, optimizer, x, y = make(args)
    every = optimizer
    if early:
        make_optimizer = partial(torch.optim.AdamW, foreach=False)
        optimizer = InBackward(net.parameters(), make_optimizer)
        every = [*optimizer.each.values()]

    def again(net, _, *batch) -> None:
        step(net, optimizer, *batch)

    for _ in range(2):
        step(net, optimizer, x, y, lambda _: None)
    warnings.filterwarnings("ignore", "Expected a tensor")  # it is gone
    peak = track(net, every, x, y, again)["peak"]["Total"]
    params = [p.detach() for p in net.parameters()]
    most = optimizer.most if early else sum(p.nbytes for p in params)
    return peak, most, params


def main(args) -> None:
    """Train with all gradients, and with one at a time; compare."""
    peaks, grads, weights = zip(
        *(train(args, early) for early in (False, True)), strict=True
    )
    if not all(map(torch.equal, *weights)):
        job.refuse("other weights: that is a bug")
    job.put("all weights are equal, bit for bit")
    job.put(f"gradients: {grads[0]:,} bytes; one at a time, {grads[1]:,}")
    job.put(f"peak: {peaks[0]:,} bytes; one at a time, {peaks[1]:,}")


if __name__ == "__main__":
    sizes = {"width": 256, "tokens": 16}  # more weights than activations
    main(parse_args(None, __doc__, **sizes))
