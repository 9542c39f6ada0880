"""Chapter 11 - Where memory goes: compute a block twice, and keep its input.

Run it (no GPU needed):
    python scripts/ch11_checkpoint.py
"""

import job  # noqa: F401 - first, since importing torch takes seconds

import torch
from torch import nn

from ch11_memory import parse_args
from recompute import SIZES, compare, per_token


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


def by_hand(args) -> dict:
    """Return what runs a block, what it keeps, and what it computes again.

    It keeps so many numbers for each token, and redoes so many operations.
    """
    plain, (kept, forward) = nn.Module.__call__, per_token(args)
    return {"keep all": (plain, kept, 0), "ours": (ours, args.width, forward)}


if __name__ == "__main__":
    args = parse_args(None, __doc__, **SIZES)
    compare(args, by_hand(args))
