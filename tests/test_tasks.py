"""The digits that the scripts train on are scikit-learn's."""

import torch
from sklearn import datasets

from scripts import ch5_ddp  # noqa: F401 - which puts their folder on the path

import tasks


def test_digits_are_scikit_learns():
    """The file that is read holds what its own function returns, bit by bit."""
    theirs = map(torch.as_tensor, datasets.load_digits(return_X_y=True))
    for own, other in zip(tasks.load_digits(), theirs, strict=True):
        assert own.dtype == other.dtype and own.equal(other)
