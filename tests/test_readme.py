"""The README's figures are right, and its links and its tree name what exists."""

import re

import pytest

from allranks import clinic
from allranks.base.paths import ROOT
from book._ext.runs import records

TEXT = (ROOT / "README.md").read_text("utf8")
CASES = clinic.folder(ROOT / "clinic")
PAGES = [page.read_text("utf8") for page in ROOT.glob("book/*.md")]


@pytest.mark.parametrize(
    ("said", "count"),
    [
        (r"(\d+) failures are replayed", sum(case.runs for case in CASES)),
        (r"\((\d+) more need GPUs", sum(not case.runs for case in CASES)),
        (r"(\d+) claims of widely read articles", len([*ROOT.glob("errata/*_*.py")])),
        (r"(\d+) commands", sum(len(records.commands(page)) for page in PAGES)),
        (r"(\d+) exercises have graders", len([*ROOT.glob("exercises/ex*.py")])),
    ],
)
def test_its_figures_are_those_of_today(said, count):
    """The README's figures agree with what the book has today."""
    assert re.findall(said, " ".join(TEXT.split())) == [str(count)]


def test_its_links_lead_somewhere():
    """Pages, pictures and licences exist; GitHub itself serves the first link."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT)
    assert len(targets) > 12
    found = [target for target in targets if (ROOT / target).exists()]
    assert sorted({*targets} - {*found}) == ["../../deployments/github-pages"]


def test_its_tree_is_the_tree():
    """Each folder and file that it lists exists, and no folder is left out."""
    tree = TEXT.partition("## Where things are")[2].split("```")[1]
    listed, above = set(), ""
    for line in tree.strip().splitlines():
        names = re.split(r"\s{2,}", line.strip())[0].split()
        if not line.startswith(" "):
            above = ""
        listed |= {above + name for name in names}
        if not line.startswith(" ") and len(names) == 1 and names[0].endswith("/"):
            above = names[0]
    assert [name for name in listed if not (ROOT / name).exists()] == []
    layers = {f"allranks/{p.name}/" for p in ROOT.glob("allranks/[a-z]*/")}
    assert {p for p in layers if (ROOT / p / "__init__.py").exists()} <= listed
