"""CUDA's sentences for what a GPU cannot do, and ours for what only a real one can."""

from typing import NoReturn

import torch

INVALID_ORDINAL = (
    "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have "
    "enough GPUs?"
)
NOT_PERMITTED = (
    "CUDA error: operation not permitted when stream is capturing\n(while a CUDA graph "
    "is captured, nothing may wait for the GPU or copy between it and the host: "
    ".item(), .cpu(), print, synchronize)"
)


def refusal(what: str) -> str:
    """Say in one sentence that something needs a real GPU, and what to do."""
    return (
        f"{what} needs a real GPU, so it cannot be rehearsed: leave it out of the "
        "rehearsal, for example behind a flag of your script"
    )


def refuse_index(index: int) -> NoReturn:
    """Raise what torch or CUDA raises for a GPU that is not there.

    Raises:
        RuntimeError: for a negative index, by torch.
        torch.AcceleratorError: for any other, by CUDA.
    """
    if index < 0:
        raise RuntimeError("Device index must not be negative")
    raise torch.AcceleratorError(INVALID_ORDINAL)
