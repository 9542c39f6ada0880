"""Chapter 11 - Where memory goes: compute a block twice, and keep its input.

Run it (no GPU needed):
    python scripts/ch11_checkpoint.py
"""

import job  # first, since importing torch takes seconds

import time

import torch
from torch import nn

from ch11_memory import HEADS, make, parse_args, predict, track

SIZES = {"words": 256, "width": 192, "layers": 4, "rounds": 4}


def generators(device, states=()) -> list[torch.Tensor]:
    """Set the states of random generators, if given; return them."""
    own = [torch.random]
    if device.type != "cpu":
        own.append(torch.get_device_module(device))
    for module, state in zip(own, states, strict=False):
        module.set_rng_state(state)
    return [module.get_rng_state() for module in own]


class Checkpoint(torch.autograd.Function):
    """Keep the input of a module only; in backward, run the module again."""

    @staticmethod
    def forward(ctx, module, x, *weights):
        """Run the module; in a Function, autograd keeps nothing of it."""
        ctx.save_for_backward(x)
        ctx.module, ctx.states = module, generators(x.device)
        name = x.device.type
        dtype = torch.get_autocast_dtype(name)
        ctx.cast = name, dtype, torch.is_autocast_enabled(name)
        return module(x)

    @staticmethod
    def backward(ctx, grad):
        """Run the module again with the same dice; go back through it."""
        needs = ctx.needs_input_grad[1:]  # x, then weights; some are frozen
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_(needs[0])
        now = generators(x.device)
        generators(x.device, ctx.states)
        with torch.enable_grad(), torch.autocast(*ctx.cast):
            y = ctx.module(x)
        generators(x.device, now)
        inputs = [x, *ctx.module.parameters()]
        wanted = [t for t, need in zip(inputs, needs, strict=True) if need]
        grads = iter(torch.autograd.grad(y, wanted, grad, allow_unused=True))
        return None, *(next(grads) if need else None for need in needs)


def ours(module: nn.Module, x) -> torch.Tensor:
    """Run a module with our checkpoint; its weights are inputs, too."""
    return Checkpoint.apply(module, x, *module.parameters())


class Redone(nn.Module):
    """A block behind dropout, which is run in one of the ways."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.body, self.run = nn.Sequential(nn.Dropout(0.1), block), None

    def forward(self, x, mask=None):
        """Map (B, T, dim) to the same."""
        return self.run(self.body, x)


def run(net, optimizer, x, y, note=lambda _: None) -> None:
    """Compute gradients, always with the same dice."""
    torch.manual_seed(0)
    loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
    note("loss")
    loss.backward()


def by_hand(args) -> dict:
    """Return what runs a block, what it keeps, and what it computes again.

    It keeps so many numbers for each token, and redoes so many operations.
    """
    dim = args.width
    block = 24 * dim * dim + 2 * args.tokens * dim  # products, attention
    plain = lambda module, x: module(x)  # noqa: E731
    whole = 17 * dim + 4 + HEADS  # dropout's mask is the 17th
    return {"keep all": (plain, whole, 0), "ours": (ours, dim, block)}


def forecast(args, kept: int, redone: int) -> tuple[int, float]:
    """Return the bytes that are kept, and the time against keeping all."""
    dim, num = args.width, 4 * args.batch_size * args.tokens * args.layers
    rest = predict(args)["activations"] - num * (16 * dim + 4 + HEADS)
    forward = args.layers * by_hand(args)["ours"][2] + 2 * dim * args.words
    ratio = 1 + args.layers * redone / (3 * forward)  # backward is 2 forwards
    return rest + num * kept, ratio


def compare(args, ways: dict) -> None:
    """Print bytes and times of some ways; refuse other gradients."""
    torch.set_num_threads(1)  # times compare better
    net, optimizer, x, y = make(args)
    net.blocks = nn.ModuleList(map(Redone, net.blocks))
    clock = time.process_time if x.is_cpu else time.perf_counter
    found, times, grads = {}, {way: [] for way in ways}, {}
    for way in list(ways) * args.rounds:  # in turns
        for block in net.blocks:
            block.run = ways[way][0]
        optimizer.zero_grad()  # or what follows would add to the last way's
        if way not in found:
            found[way] = track(net, optimizer, x, y, run)
        for _ in range(2):  # the second finds memory as the first left it
            optimizer.zero_grad()
            start = clock()
            run(net, optimizer, x, y)
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


if __name__ == "__main__":
    args = parse_args(None, __doc__, **SIZES)
    compare(args, by_hand(args))
