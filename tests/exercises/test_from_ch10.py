"""The graders of chapters from 10 on let right answers pass, and no wrong one."""

import pytest

from tests.exercises.grading import Grader, names


@pytest.mark.parametrize("name", names(10))
class TestGrader(Grader):
    """Each answer is graded as a reader's is."""
