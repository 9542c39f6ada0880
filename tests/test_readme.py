"""The build writes the README's figures; its links and its tree name what exists."""

import re

import pytest

from allranks.base.paths import ROOT
from book._tools import counts

TEXT = (ROOT / "README.md").read_text("utf8")


def test_make_book_writes_its_figures():
    """Each figure is written where it stands, and a sentence that is gone is missed."""
    today = counts.counts(ROOT)
    assert counts.written(TEXT, today) == TEXT
    assert min(today.values()) > 20
    wrong = re.sub(r"\d+(?=\s+(?:failures|commands|exercises)\b)", "7", TEXT)
    assert wrong.count("7 ") > TEXT.count("7 ")
    assert counts.written(wrong, today) == TEXT
    with pytest.raises(ValueError, match="0 times how many commands"):
        counts.written(TEXT.replace("commands on", "lines on"), today)


def test_its_links_lead_somewhere():
    """Pages, pictures and licences exist; GitHub itself serves the first link."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT)
    assert len(targets) > 12
    found = [target for target in targets if (ROOT / target).exists()]
    assert sorted({*targets} - {*found}) == ["../../deployments/github-pages"]


def listed(text: str) -> set[str]:
    """Return the files and folders that the tree in a text lists."""
    tree = text.partition("## Where things are")[2].split("```")[1]
    found, above = set(), ""
    for line in tree.strip().splitlines():
        names = re.split(r"\s{2,}", line.strip())[0].split()
        if not line.startswith(" "):
            above = ""
        found |= {above + name for name in names}
        if not line.startswith(" ") and len(names) == 1 and names[0].endswith("/"):
            above = names[0]
    return found


def test_its_tree_is_the_tree():
    """What it lists exists; CONTRIBUTING.md lists more, and leaves no layer out."""
    tree = listed((ROOT / "CONTRIBUTING.md").read_text("utf8"))
    assert set() < listed(TEXT) < tree
    assert [name for name in tree if not (ROOT / name).exists()] == []
    layers = {f"allranks/{p.name}/" for p in ROOT.glob("allranks/[a-z]*/")}
    assert {p for p in layers if (ROOT / p / "__init__.py").exists()} <= tree
