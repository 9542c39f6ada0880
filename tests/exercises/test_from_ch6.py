"""The graders of chapters 6 to 9 let right answers pass, and no wrong one."""

import pytest

from tests.exercises.grading import Grader, names


@pytest.mark.parametrize("name", names(6, 9))
class TestGrader(Grader):
    """Each answer is graded as a reader's is."""
