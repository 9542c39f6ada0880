"""A fixture that saves a file for each test."""

import pytest
import torch


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves an object in a file of this test."""

    def save(state, name="in.pt", **options):
        torch.save(state, tmp_path / name, **options)
        return tmp_path / name

    return save
