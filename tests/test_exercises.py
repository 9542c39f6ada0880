"""Every grader is tried: the solution passes, what is wrong is refused, and told why."""

import re
from pathlib import Path

import nbformat
import pytest

from allranks.exercises import check, files, grader
from book._tools import exercises as book

ROOT = Path(__file__).resolve().parents[1]
NAMES = files.names()
NOTEBOOKS = {
    int(path.stem.partition("_")[0].removeprefix("ch")): path
    for path in ROOT.glob("notebooks/ch*.ipynb")
}


@pytest.mark.parametrize("name", NAMES)
class TestGrader:
    """Each cell of an exercise's file is played as a reader's answer."""

    def test_knows_the_stub(self, name):
        """Nothing was written yet: no rank starts, nothing is called wrong."""
        exercise = files.find(name)
        (stub,) = (cell for cell in exercise.cells if cell.kind == "stub")
        found = check(exercise.answer(stub))
        assert (found.status, found.passed) == ("stub", False)

    def test_lets_what_is_right_pass(self, name):
        """The solution, and an answer that the author of a grader may not think of."""
        exercise = files.find(name)
        for cell in exercise.cells:
            if cell.kind in ("solution", "right"):
                found = check(exercise.answer(cell))
                assert found.passed, f"{cell.kind}: {cell.note}\n{found.message}"
                assert found.cases

    def test_refuses_what_is_wrong_and_says_why(self, name):
        """Each mistake is told in its own words, none in those of our machinery."""
        exercise, told = files.find(name), {}
        for cell in exercise.cells:
            if cell.kind == "wrong":
                found = check(exercise.answer(cell))
                assert found.status in ("wrong", "error", "hang"), cell.note
                assert "of no use to the check" not in found.message, cell.note
                assert not re.search(r"Traceback|Verdict|site-packages|allranks", found.message)
                told[cell.note] = found.message
        assert len(set(told.values())) == len(told), told
