"""Every failure that runs on live ranks still fails, and every cure still cures."""

import pytest

from tests.clinic.playing import LIVE, check, slug


@pytest.mark.replay("clinic/{case.slug}.py")
@pytest.mark.parametrize("case", LIVE, ids=slug)
def test_fails_as_it_says_and_is_cured(case):
    """A case's signature appears, and is gone with the cure."""
    check(case)
