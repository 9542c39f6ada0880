"""Helpers that make checkpoints, whole or damaged, and return the tool's refusal."""

import io
import random
import zipfile

import pytest
import torch
from torch import nn

from allranks.checkpoint.command import main

WEIGHT = torch.ones(2, 3)


def make_net():
    """Return layers with parameters and buffers, whose versions are in the metadata."""
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def refusal(*argv) -> str:
    """Return the one sentence with which the tool refuses, with exit code 1."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in argv])
    assert isinstance(end.value.code, str)  # Python prints it and exits with 1
    assert len(end.value.code.splitlines()) == 1 and end.value.code.isascii()
    return end.value.code


def packed(state, **options) -> bytes:
    """Return what torch.save would write."""
    file = io.BytesIO()
    torch.save(state, file, **options)
    return file.getvalue()


def rewritten(data: bytes, change) -> bytes:
    """Return a zip archive of torch.save with another pickle and correct checksums."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            part = old.read(name)
            new.writestr(name, change(part) if name.endswith("data.pkl") else part)
    return file.getvalue()


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Return data with damage of some kind: cut, flipped, spliced, or in the pickle."""
    kind = dice.choice(["cut", "flip", "splice", "insert", "tail", "pickle", "pickle"])
    if kind == "pickle" and data.startswith(b"PK"):
        return rewritten(data, lambda part: mutated(part, dice))
    i, j = sorted(dice.choices(range(len(data)), k=2))
    if kind == "cut":
        return data[:i]
    if kind == "splice":
        return data[:i] + data[j:]
    if kind == "insert":
        return data[:i] + dice.randbytes(dice.randrange(1, 40)) + data[i:]
    data = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 20])):
        spot = (
            len(data) - dice.randrange(1, min(900, len(data))) if kind == "tail" else i
        )
        data[spot] = dice.choice([0, 127, 255, dice.randrange(256)])
        i = dice.randrange(len(data))
    return bytes(data)
