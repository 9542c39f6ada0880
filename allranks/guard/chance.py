"""Whether a loss draws random numbers: then two gradients of one batch differ."""

import random
import sys

import torch

from .digests import digest

DRAWS = (
    "preflight's loss draws random numbers in evaluation mode too ({}), so that even "
    "two gradients of one batch differ: it cannot be compared. Draw them outside and "
    "make them part of the batch, such as (x, noise, t); then both sides get the same."
)


def generators(accelerator, device: torch.device) -> dict[str, object]:
    """States of the generators that torch, Python and NumPy share, by name."""
    found = {"the CPU's generator": int(digest(torch.get_rng_state()))}
    if accelerator and hasattr(accelerator, "get_rng_state"):
        there = accelerator.get_rng_state(device).cpu()
        found[f"{device.type}'s generator"] = int(digest(there))
    found["Python's generator"] = random.getstate()
    numpy = sys.modules.get("numpy")
    if numpy:
        kind, keys, *rest = numpy.random.get_state()
        found["NumPy's generator"] = kind, keys.tobytes(), *rest
    return found


def moved(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Name the generators that moved."""
    return [key for key in before if before[key] != after[key]]


def tell(checks, where: str, names: list[str], again: torch.Tensor) -> bool:
    """Warn, alike on all ranks, if the gradient of a loss is a matter of chance.

    Args:
        names: generators that moved on this rank while it was taken.
        again: dot product, first squared, second squared of the same gradient, taken
            twice, summed over this rank's parameters: (3,).
    """
    dot, first, second = again.tolist()
    if not names and second - 2 * dot + first > 1e-6 * first:
        names = ["a generator of its own"]
    said = checks.exchange.texts(" and ".join(names))
    if any(said):
        checks.tell(DRAWS.format(next(filter(None, said))))
    return any(said)
