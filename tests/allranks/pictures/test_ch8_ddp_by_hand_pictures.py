"""A title about a recorded step fits its numbers."""

import pytest

from tests.allranks.pictures.drawing import refuses


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ch8_ddp_by_hand.trace", r"message 0: [\d.]+", "message 0: 30.0"),
    ],
)
def test_numbers_that_contradict_the_title_are_refused(name, old, new):
    """A title is a claim, so another result needs another title."""
    refuses(name, old, new)
