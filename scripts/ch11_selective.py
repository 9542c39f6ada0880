"""Chapter 11 - Where memory goes: compute twice what is cheap, by torch.

Run it (no GPU needed):
    python scripts/ch11_selective.py
"""

import job  # noqa: F401 - first, since importing torch takes seconds

from functools import partial

import torch
from torch.utils import checkpoint as torchs

from ch11_checkpoint import by_hand
from ch11_memory import HEADS, parse_args
from recompute import SIZES, compare


def to_the_end(module, x) -> torch.Tensor:
    """Run a module with torch's checkpoint, which redoes all of it."""
    with torchs.set_checkpoint_early_stop(False):
        return torchs.checkpoint(module, x, use_reentrant=False)


def worth_keeping(_, op, *args, **kwargs) -> bool:
    """Tell what to keep: attention, and products wider than their input.

    The rest is redone: mix, the norms, sums, dropout and gelu.
    """
    if op is torch.ops.aten.addmm.default:
        return args[2].shape[1] > args[2].shape[0]  # bias, x, (in, out)
    return "attention" in str(op)


theirs = partial(torchs.checkpoint, use_reentrant=False)
contexts = torchs.create_selective_checkpoint_contexts
selective = partial(theirs, context_fn=partial(contexts, worth_keeping))


def by_torch(args) -> dict:
    """Add torch's ways to ours: what runs a block, is kept, and is redone."""
    dim, ways = args.width, by_hand(args)
    (_, kept, block), product = ways["ours"], 2 * dim * dim
    return ways | {
        "torch, to the end": (to_the_end, kept, block),
        "torch": (theirs, kept, block - 4 * product),  # it stops before down
        "torch, selective": (selective, 9 * dim + HEADS, product),
    }


if __name__ == "__main__":
    args = parse_args(None, __doc__, **SIZES)
    compare(args, by_torch(args))
