"""Whether a loss draws random numbers: then two gradients of one batch differ."""

import random
import sys

import torch

DRAWS = (
    "preflight's loss draws random numbers in evaluation mode too ({}), so that even "
    "two gradients of one batch differ: it cannot be compared. Draw them outside and "
    "make them part of the batch, such as (x, noise, t); then both sides get the same."
)


def generators(accelerator, device: torch.device) -> dict[str, object]:
    """States of the generators that torch, Python and NumPy share, by name."""
    found = {"the CPU's generator": torch.get_rng_state().numpy().tobytes()}
    if accelerator and hasattr(accelerator, "get_rng_state"):
        there = accelerator.get_rng_state(device).cpu()
        found[f"{device.type}'s generator"] = there.numpy().tobytes()
    found["Python's generator"] = random.getstate()
    numpy = sys.modules.get("numpy")
    if numpy:
        kind, keys, *rest = numpy.random.get_state()
        found["NumPy's generator"] = kind, keys.tobytes(), *rest
    return found


def moved(before: dict[str, object], after: dict[str, object]) -> str:
    """Name the generators that moved; "" if none did."""
    return " and ".join(key for key in before if before[key] != after[key])


def apart(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether products (P, 3), each with one reference, show two other gradients.

    The reference is the first gradient: (first, first) against (second, first).
    """
    off = (second[:, 2] - 2 * second[:, 0] + second[:, 1]).clamp_min(0).sum()
    return bool(off > 1e-4 * first[:, 1].sum())
