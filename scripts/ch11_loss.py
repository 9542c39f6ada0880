"""Chapter 11 - Where memory goes: a loss whose logits never exist whole.

Run it (no GPU needed):
    python scripts/ch11_loss.py
"""

import job  # first, since importing torch takes seconds

import time
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from ch11_memory import make, parse_args, predict, track

# Shapes: N tokens of the batch, C of a chunk, D the width, V words


class ChunkedLoss(torch.autograd.Function):
    """Take the mean cross entropy of a float32 linear layer, by chunks.

    Forward knows the gradient of a chunk's logits: probabilities, less one at
    the right word. It gives the gradients of x and of the layer, then it goes.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, y, size):
        """Return the loss of x (N, D), weight (V, D), bias (V,), y (N,)."""
        loss, grads = x.new_zeros(()), torch.empty_like(x)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        for start in range(0, len(x), size):
            rows = slice(start, start + size)
            logits = torch.addmm(bias, x[rows], weight.T)  # (C, V)
            right = y[rows, None]  # (C, 1)
            total = logits.logsumexp(dim=1, keepdim=True)
            loss += (total - logits.gather(1, right)).sum()
            slope = logits.sub_(total).exp_()  # probabilities, in place
            slope.scatter_add_(1, right, slope.new_full(right.shape, -1))
            slope /= len(x)
            grads[rows] = slope @ weight
            of_weight.addmm_(slope.T, x[rows])
            of_bias += slope.sum(dim=0)
        ctx.save_for_backward(grads, of_weight, of_bias)
        return loss / len(x)

    @staticmethod
    def backward(ctx, grad):
        """Scale what is there; in place, so it can be called only once."""
        return *(g.mul_(grad) for g in ctx.saved_tensors), None, None


def plain(h: torch.Tensor, head: nn.Linear, y, size: int) -> torch.Tensor:
    """Make all logits, (N, V), then their loss."""
    return F.cross_entropy(head(h), y)


def ours(h: torch.Tensor, head: nn.Linear, y, size: int) -> torch.Tensor:
    """Make logits for so many tokens at a time."""
    return ChunkedLoss.apply(h, head.weight, head.bias, y, size)


def torchs(h: torch.Tensor, head: nn.Linear, y, size: int) -> torch.Tensor:
    """Let torch do the same."""
    how = {"batch_chunk_size": size, "chunking_method": None}
    more = {"options": nn.LinearCrossEntropyOptions(**how)}
    more["linear_bias"] = head.bias
    return F.linear_cross_entropy(h, head.weight, y, **more)


class Trunk(nn.Module):
    """A GPT that returns what goes into its head, (N, D)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.head, net.head, self.net = net.head, nn.Identity(), net

    def forward(self, x):
        """Map words (B, T) to (N, D), where N is B * T."""
        return self.net(x).flatten(0, 1)


def run(net: Trunk, optimizer, x, y, note, loss_of) -> torch.Tensor:
    """Compute gradients; return the loss."""
    loss = loss_of(net(x), net.head, y.flatten())
    note("loss")
    loss.backward()
    return loss.detach()


def forecast(args) -> list[int]:
    """Return what plain keeps, then the others: gradients, but no logits."""
    kept, tokens = predict(args)["activations"], args.batch_size * args.tokens
    layer = args.words * (args.width + 1)  # h's gradient is as large as h
    return [kept, *[kept - 4 * tokens * args.words - 4 + 4 * layer] * 2]


def main(args) -> None:
    """Compare the ways: bytes, time and gradients."""
    torch.set_num_threads(1)  # times compare better
    first, wanted = None, forecast(args)
    job.put("MB         kept  formula     peak     time  largest gap")
    ways = {"plain": plain, "ours": ours, "torch": torchs}.items()
    for (name, way), kept in zip(ways, wanted, strict=True):
        net, optimizer, x, y = make(args)
        clock = time.process_time if x.is_cpu else time.perf_counter
        todo = partial(run, loss_of=partial(way, size=args.chunk))
        net, times = Trunk(net), []
        found = track(net, optimizer, x, y, todo)
        for _ in range(args.rounds):
            optimizer.zero_grad()
            start = clock()
            loss = todo(net, optimizer, x, y, lambda _: None).item()
            times.append(clock() - start)
        grads = [p.grad for p in net.parameters()]
        first = first or grads
        gaps = [(a - b).abs().max() for a, b in zip(grads, first, strict=True)]
        real = found["loss"]["Activation"] + found["loss"]["Other"] - 4
        numbers = [n / 1e6 for n in (real, kept, found["peak"]["Total"])]
        row = "".join(f"{n:9.2f}" for n in numbers)
        row += f"{1e3 * min(times):6.1f} ms"
        job.put(f"{name:6}{row}  {max(gaps):.1e}, {loss=:.6f}")


if __name__ == "__main__":
    flags = {"words": 8192, "layers": 1, "chunk": 64, "rounds": 5}
    main(parse_args(None, __doc__, **flags))
