"""The answers are no tests and no modules: tests/answers.py reads them as text."""

import pytest

pytest.register_assert_rewrite("tests.exercises.grading")  # else no values are shown
collect_ignore_glob = ["ex*.py"]
