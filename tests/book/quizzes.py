"""Read every quiz from the sources of the pages."""

import re
from dataclasses import dataclass

from allranks.base.paths import ROOT
from book._ext.quiz import formula

FENCE = re.compile(r"^```\{quiz\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^:(\w+): (.+)$", re.MULTILINE)
FORMULA = re.compile(r"^- (!?=) (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """One quiz as its page states it."""

    page: str
    name: str
    fields: dict
    text: str

    @property
    def chapter(self) -> str:
        """Return the start of its chapter's names; section pages belong to it."""
        return self.page.partition("_")[0]

    @property
    def numbers(self) -> formula.Numbers | None:
        """Return the formulas of a number quiz, or None for any other quiz."""
        formulas = sorted(FORMULA.findall(self.text), key=lambda one: one[0] != "=")
        if not formulas:
            return None
        values = formula.spans(self.fields["values"])
        right, *wrong = [formula.parse(text, values) for _, text in formulas]
        digits = int(self.fields.get("digits", 0))
        return formula.Numbers(values, right, wrong, digits)


def read() -> list[Source]:
    """Return all quizzes, page by page."""
    found = []
    for path in sorted(ROOT.glob("book/*.md")):
        for match in FENCE.finditer(path.read_text("utf8")):
            fields = dict(FIELD.findall(match[1]))
            found.append(Source(path.stem, fields["name"], fields, match[1]))
    return found


QUIZZES = read()
NUMBERS = {quiz.name: quiz.numbers for quiz in QUIZZES if quiz.numbers}
