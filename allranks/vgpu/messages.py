"""What virtual GPUs say: CUDA's own errors, refusals, and notes on stderr."""

import os
import sys
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
said: set[str] = set()  # sentences, in this process


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


def say_once(sentence: str) -> None:
    """Print a note of a rehearsal once per process; of several ranks, rank 0 does."""
    if sentence not in said:
        said.add(sentence)
        if os.environ.get("RANK", "0") == "0":
            print(f"rehearsal: {sentence}", file=sys.stderr)
