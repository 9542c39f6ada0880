"""Which line of the program runs, seen from an operation of torch's."""

import os
import sys

import torch

OWN = os.path.dirname(__file__) + os.sep
TORCH = os.path.dirname(torch.__file__) + os.sep
OPTIM = os.path.join(TORCH, "optim") + os.sep
LOADER = torch.utils.data.dataloader.__file__


def place() -> tuple[str, object]:
    """The line that is being run, and the loader's iterator that runs it, if any does.

    The line is the innermost that is not torch's. It is empty in an optimizer, whose
    settings and state are compared elsewhere.
    """
    frame, line, loader = sys._getframe(2), None, None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OPTIM):
            return "", None
        if file == LOADER and frame.f_code.co_name == "_next_data":
            loader = frame.f_locals.get("self")
        if line is None and not file.startswith((TORCH, OWN, "<frozen")):
            line = f"{os.path.basename(file)}, line {frame.f_lineno}"
        frame = frame.f_back
    return line or "", loader


def beneath(function: str) -> bool:
    """Whether a function of that name is being run."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False
