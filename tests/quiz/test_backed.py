"""Every quiz is backed by its chapter's file, and nothing there is stale."""

import ast
import re

import pytest

from allranks.base.paths import ROOT
from tests.book.quizzes import NUMBERS, QUIZZES

TEST = re.compile(r"^(@law\n)?def test_(ch\d+_\w+)\(", re.MULTILINE)
BACKED = re.compile(r"^BACKED = (\{.*?^\})", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("chapter", sorted({quiz.chapter for quiz in QUIZZES}))
def test_every_quiz_of_a_chapter_is_backed(chapter):
    """Each has a run, a law or a named source, which exists; numbers have a law."""
    (path,) = ROOT.glob(f"tests/quiz/test_{chapter}_*.py")
    text = path.read_text("utf8")
    tests = {name: bool(law) for law, name in TEST.findall(text)}
    (given,) = BACKED.findall(text) or ["{}"]
    backed = ast.literal_eval(given)
    own = {quiz.name for quiz in QUIZZES if quiz.chapter == chapter}
    assert tests.keys() | backed.keys() == own
    assert not tests.keys() & backed.keys()
    assert {name for name, law in tests.items() if law} == own & NUMBERS.keys()
    for source in backed.values():
        path, _, test = source.partition("::")
        if path.endswith(".py"):
            assert f"def {test}(" in (ROOT / path).read_text("utf8") or not test
