"""What the proofs of all chapters' quizzes share."""

import pytest

from allranks import Ranks


@pytest.fixture(scope="module")
def two():
    """Yield two live ranks."""
    with Ranks(2) as ranks:
        yield ranks
