"""Every failure that needs a command still fails, and every cure still cures.

There are also as many cases as the pages say, and each was recorded.
"""

import json
import re

import pytest

from allranks import clinic
from tests.clinic.playing import CASES, LAUNCHED, LIVE, ROOT, check, slug


@pytest.mark.replay("clinic/{case.slug}.py")
@pytest.mark.parametrize("case", LAUNCHED, ids=slug)
def test_fails_as_it_says_and_is_cured(case):
    """A case's signature appears, and is gone with the cure."""
    check(case)


def test_there_are_enough():
    """At least 120 cases run, and there are some of each class and each symptom."""
    assert len(LIVE) + len(LAUNCHED) >= 120
    assert {case.fields["class"] for case in CASES} == set(clinic.CLASSES)
    assert {case.fields["symptom"] for case in CASES} == set(clinic.SYMPTOMS)


def test_a_case_that_was_not_run_quotes_its_source():
    """A quoted case links to its source, and has no recorded outcome."""
    recorded = json.loads((ROOT / "clinic" / clinic.RECORDS).read_text("utf8"))
    for case in CASES:
        if not case.runs:
            assert case.links and case.quoted, case.slug
            assert case.slug not in recorded
    assert set(recorded) == {case.slug for case in CASES if case.runs}


LONGER = {"exit-abort-gloo": 55}  # lines; it has to end a process at one moment


@pytest.mark.parametrize("case", LIVE + LAUNCHED, ids=slug)
def test_the_page_shows_what_the_tests_demand(case):
    """The recorded run has the signature and the guard's message, too."""
    recorded, signature = clinic.recorded(case), case.fields["signature"]
    assert re.search(signature, recorded["broken"].text)
    assert recorded["broken"].status in clinic.SYMPTOMS[case.fields["symptom"]]
    assert recorded["fixed"].status in ("runs", "warns")
    assert not re.search(signature, recorded["fixed"].text)
    if "guarded" in recorded:
        assert re.search(case.fields["guard"], recorded["guarded"].text)


@pytest.mark.parametrize("case", CASES, ids=slug)
def test_a_case_is_short_and_about_a_chapter_that_exists(case):
    """Code and text are short, because pages are also read on phones."""
    assert (ROOT / "book" / f"{case.fields['chapter']}.md").is_file()
    for code in (case.given, *case.cells.values(), case.check):
        assert len(code.splitlines()) <= LONGER.get(case.slug, 30)
        assert all(len(line) <= 88 for line in code.splitlines())
    for part in ("You see", "Cause", "Cure", "Next time"):
        assert 10 < len(case.parts[part]) < 700, part
