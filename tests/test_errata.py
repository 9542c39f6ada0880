"""Each slip of the sources still goes wrong as the page says; each repair works."""

import re

import pytest
import torch

from allranks import clinic
from allranks.clinic import errata
from allranks.clinic.play import play
from allranks.paths import ROOT
from book._ext.runs import records

ERRATA = errata.folder(ROOT / "errata")
ROWS = {"a": 12, "b": 8, "c": 14, "d": 5, "e": 7}  # of each source's table
FIRST = ("wrong", "claim")


def key(specimen) -> str:
    """A test's id."""
    return specimen.row


def test_every_row_has_a_specimen():
    """No mistake that we found is left out, none has two numbers."""
    rows = [f"{source}{n + 1}" for source, num in ROWS.items() for n in range(num)]
    assert [specimen.row for specimen in ERRATA] == rows


def test_every_specimen_is_on_the_page_once():
    """The page shows each source's specimens, in full."""
    page = (ROOT / "book" / "app_errata.md").read_text("utf8")
    assert re.findall(r"\{specimens\} errata\n:source: (\w)", page) == list(ROWS)


@pytest.mark.parametrize("specimen", ERRATA, ids=key)
class TestSpecimen:
    """The page's promise, row by row."""

    def test_plays_as_recorded(self, specimen):
        """The slip ends as the page says; the repair works; both print the same."""
        elsewhere = specimen.fields.get("elsewhere")
        lacks_a_gpu = elsewhere or "hardware" in specimen.fields
        if lacks_a_gpu and torch.cuda.is_available():
            pytest.skip("recorded without a GPU, and this machine has one")
        for cell, old in clinic.recorded(specimen).items():
            new = play(specimen, cell)
            if cell == "wrong" and elsewhere and elsewhere in new.text:
                continue  # torch is a CUDA build
            assert new.status == old.status, f"{cell}: {new.text}"
            assert records.same(old.text, new.text), f"{old.text}\n---\n{new.text}"

    def test_goes_wrong_and_is_repaired(self, specimen):
        """What was recorded is what the docstring announces; the repair is clean."""
        first, second = clinic.recorded(specimen).values()
        assert first.status == specimen.fields["outcome"]
        assert second.status == "runs"
        assert second.text, "a repair has to show that it works"
        assert first.text != second.text

    def test_says_what_it_is(self, specimen):
        """Short enough to be read, and about a chapter that exists."""
        page = ROOT / "book" / f"{specimen.fields['chapter']}.md"
        assert page.is_file()
        assert 60 < len(specimen.prose.split("\n\n")[0]) < 1000
        for code in (specimen.given, *specimen.cells.values()):
            assert len(code.splitlines()) <= 25
            assert all(len(line) <= 88 for line in code.splitlines())


def text(name: str) -> str:
    """A page as one line."""
    return " ".join((ROOT / "book" / f"{name}.md").read_text("utf8").split())


def test_the_sources_are_called_by_their_names():
    """Source D is a book of its own, and A1's slip is one letter."""
    pages = {path.stem: text(path.stem) for path in ROOT.glob("book/*.md")}
    for name, page in pages.items():
        for other in "Dive into Deep Learning (PyTorch)", "Dive into Deep Learning in":
            assert other not in page, name
    assert "## D. Dive-into-DL-PyTorch" in pages["app_errata"]
    wrong = clinic.recorded(ERRATA[0])["wrong"].text
    assert "'DistributedDataParalled'" in wrong


def test_no_praise_contradicts_a_row():
    """A step that the table below repairs cannot be called right above it."""
    praise = text("app_errata").partition("## A.")[2].partition("```")[0]
    assert "(A3)" in praise and "(A9)" in praise
    assert "the right ones" not in praise and "right order" not in praise
