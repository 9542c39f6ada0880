"""Every failure of the clinic still happens, and every cure still cures."""

import re
from pathlib import Path

import pytest

from allranks import clinic, specimens
from allranks.play import play

ROOT = Path(__file__).resolve().parents[2]
CASES = clinic.folder(ROOT / "clinic")
PLAYED = [case for case in CASES if case.runs]
FIRST = "broken"


def slug(case) -> str:
    """A test's id."""
    return case.slug


def test_there_are_enough():
    """The clinic has at least 120 cases that run, of every class."""
    assert len(PLAYED) >= 120
    assert {case.fields["class"] for case in CASES} == set(clinic.CLASSES)


@pytest.mark.parametrize("case", PLAYED, ids=slug)
def test_fails_as_it_says_and_is_cured(case):
    """Broken shows its signature, fixed does not, the guard sees what it should."""
    signature = case.fields["signature"]
    broken = play(case, "broken")
    assert broken.status in clinic.SYMPTOMS[case.fields["symptom"]], broken.text
    assert re.search(signature, broken.text), broken.text
    fixed = play(case, "fixed")
    assert fixed.status in ("runs", "warns"), fixed.text
    assert fixed.text, "a cure has to show that it works"
    assert not re.search(signature, fixed.text), fixed.text
    if "guarded" in case.cells:
        caught = play(case, "guarded")
        assert caught.status == "raises", caught.text
        assert re.search(f"GuardError: .*{case.fields['guard']}", caught.text), (
            caught.text
        )


@pytest.mark.parametrize("case", PLAYED, ids=slug)
def test_the_page_shows_a_run(case):
    """What is recorded for the page shows the signature too."""
    recorded = specimens.recorded(case)
    signature = case.fields["signature"]
    assert re.search(signature, recorded["broken"].text)
    assert recorded["broken"].status in clinic.SYMPTOMS[case.fields["symptom"]]
    assert recorded["fixed"].status in ("runs", "warns")
    assert not re.search(signature, recorded["fixed"].text)
