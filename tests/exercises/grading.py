"""Every grader lets right answers pass, and tells wrong ones why they are wrong.

It takes minutes, so a file beside this one has some chapters: workers share them.
"""

import math
import re

import pytest

from allranks import check
from allranks.exercises import files
from tests.answers import function, read

OURS = r"Traceback|Verdict|site-packages|allranks|check of ex|__main__"


def names(first: int, last: float = math.inf) -> list[str]:
    """Return the names of the exercises of chapters ``first`` to ``last``."""
    return [n for n in files.names() if first <= files.find(n).chapter <= last]


def answers(name: str, *kinds: str) -> list[files.Cell]:
    """Return the answers of some kinds to an exercise."""
    return [cell for cell in read(files.find(name)) if cell.kind in kinds]


@pytest.mark.replay("exercises/{name}.py")
class Grader:
    """Each answer is graded as a reader's is."""

    def test_knows_the_stub(self, name):
        """An untouched stub is recognised, and is not called wrong."""
        found = check(function(name, files.find(name).code("stub")))
        assert (found.status, found.passed) == ("stub", False)
        assert found.message.startswith(f"{name}: still the stub.")

    def test_lets_what_is_right_pass(self, name):
        """The solution passes, and so do other right answers, however unexpected."""
        right = answers(name, "solution", "right")
        assert len(right) >= 2
        for cell in right:
            found = check(function(name, cell.code))
            assert found.passed, f"{cell.kind}: {cell.note}\n{found.message}"
            assert found.cases

    def test_refuses_what_is_wrong_and_says_why(self, name):
        """Each mistake has a message of its own, which shows none of our machinery."""
        wrong, told = answers(name, "wrong", "mistake"), set()
        assert len(wrong) >= 3
        for cell in wrong:
            found = check(function(name, cell.code))
            assert found.status in ("wrong", "error", "hang"), cell.note
            assert "of no use to the check" not in found.message, cell.note
            assert not re.search(OURS, found.message), found.message
            # A group of one rank may show another side of a mistake.
            if not found.message.startswith(f"{name}: not yet. 1 rank"):
                assert cell.sentence in " ".join(found.message.split()), cell.note
            assert found.message not in told, cell.note
            told.add(found.message)
