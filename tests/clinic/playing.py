"""Check a case by playing it; test_live and test_launched share this."""

import re

import torch

from allranks import clinic
from allranks.base.paths import ROOT
from allranks.clinic.play import play

CASES = clinic.folder(ROOT / "clinic")
LAUNCHED = [case for case in CASES if case.runs and case.commands]
LIVE = [case for case in CASES if case.runs and not case.commands]


def slug(case) -> str:
    """Return a test's id."""
    return case.slug


def check(case) -> None:
    """Check that broken shows its signature, fixed doesn't, and the guard reports."""
    signature, symptom = case.fields["signature"], case.fields["symptom"]
    if "elsewhere" in case.fields and torch.backends.cuda.is_built():
        signature = case.fields["elsewhere"].replace(" or ", "|")
    broken = play(case, "broken")
    assert broken.status in clinic.SYMPTOMS[symptom], f"{broken.status}\n{broken.text}"
    assert re.search(signature, broken.text), broken.text
    fixed = play(case, "fixed")
    assert fixed.status in ("runs", "warns"), fixed.text
    assert fixed.text, "a cure has to show that it works"
    assert not re.search(signature, fixed.text), fixed.text
    if "guarded" in case.cells:
        guarded = play(case, "guarded")
        assert guarded.status == "raises", f"{guarded.status}\n{guarded.text}"
        said = f"GuardError: .*{case.fields['guard']}"
        assert re.search(said, guarded.text), guarded.text
