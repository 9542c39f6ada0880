"""Sums are rounded as torch rounds them, and titles fit the numbers."""

import pytest
import torch

from allranks.pictures import ch10_precision
from tests.allranks.pictures.drawing import refuses


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ch10_precision.sums", r"41\.03", "0.50"),
        ("ch10_precision.cures", r"(bf16  .*loss) 3\.\d+", r"\1 2.950"),
    ],
)
def test_numbers_that_contradict_the_title_are_refused(name, old, new):
    """A title is a claim, so another result needs another title."""
    refuses(name, old, new)


def test_float32_rounds_as_torch_does():
    """The sums of chapter 10's picture are torch's."""
    for x in (1 + 2.0**-24, 1 + 2.0**-23, 0.1, 1e-40):
        assert ch10_precision.float32(x) == torch.tensor(x, dtype=torch.float32).item()
