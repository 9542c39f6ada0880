"""Each mistake of the sources still fails as the page says, and each repair works."""

import re

import pytest
import torch

from allranks import clinic
from allranks.base.paths import ROOT
from allranks.clinic import errata
from allranks.clinic.play import play
from book._ext.runs import records

ERRATA = errata.folder(ROOT / "errata")
ROWS = {"a": 12, "b": 8, "c": 14, "d": 5, "e": 7}  # in each source's table
FIRST = ("wrong", "claim")


def key(specimen) -> str:
    """Return a test's id."""
    return specimen.row


def test_every_row_has_a_specimen():
    """Every mistake that we found has one specimen, with a number of its own."""
    rows = [f"{source}{n + 1}" for source, num in ROWS.items() for n in range(num)]
    assert [specimen.row for specimen in ERRATA] == rows


def test_every_specimen_is_on_the_page_once():
    """The page shows the specimens of each source once."""
    page = (ROOT / "book" / "app_errata.md").read_text("utf8")
    assert re.findall(r"\{specimens\} errata\n:source: (\w)", page) == list(ROWS)


@pytest.mark.parametrize("specimen", ERRATA, ids=key)
class TestSpecimen:
    """Each specimen keeps what the page promises."""

    @pytest.mark.replay("errata/{specimen.slug}.py")
    def test_plays_as_recorded(self, specimen):
        """Played again, the mistake and the repair end and print as recorded."""
        elsewhere = specimen.fields.get("elsewhere")
        lacks_a_gpu = elsewhere or "hardware" in specimen.fields
        if lacks_a_gpu and torch.cuda.is_available():
            pytest.skip("recorded without a GPU, and this machine has one")
        for cell, old in clinic.recorded(specimen).items():
            new = play(specimen, cell)
            if cell == "wrong" and elsewhere and torch.backends.cuda.is_built():
                assert any(words in new.text for words in elsewhere.split(" or "))
                continue
            assert new.status == old.status, f"{cell}: {new.text}"
            assert records.same(old.text, new.text), f"{old.text}\n---\n{new.text}"

    def test_goes_wrong_and_is_repaired(self, specimen):
        """The recorded outcome is the one the docstring announces; the repair runs."""
        first, second = clinic.recorded(specimen).values()
        assert first.status == specimen.fields["outcome"]
        assert second.status == "runs"
        assert second.text, "a repair has to show that it works"
        assert first.text != second.text

    def test_says_what_it_is(self, specimen):
        """A specimen is short, and about a chapter that exists."""
        page = ROOT / "book" / f"{specimen.fields['chapter']}.md"
        assert page.is_file()
        assert 60 < len(specimen.prose.split("\n\n")[0]) < 1000
        for code in (specimen.given, *specimen.cells.values()):
            assert len(code.splitlines()) <= 25
            assert all(len(line) <= 88 for line in code.splitlines())


def text(name: str) -> str:
    """Return a page as one line."""
    return " ".join((ROOT / "book" / f"{name}.md").read_text("utf8").split())


def test_the_sources_are_called_by_their_names():
    """Source D is not called Dive into Deep Learning, and A1's typo is one letter."""
    pages = {path.stem: text(path.stem) for path in ROOT.glob("book/*.md")}
    for name, page in pages.items():
        for other in "Dive into Deep Learning (PyTorch)", "Dive into Deep Learning in":
            assert other not in page, name
    assert "## D. Dive-into-DL-PyTorch" in pages["app_errata"]
    wrong = clinic.recorded(ERRATA[0])["wrong"].text
    assert "'DistributedDataParalled'" in wrong


def test_no_praise_contradicts_a_row():
    """The text above a table doesn't praise a step that the table corrects."""
    praise = text("app_errata").partition("## A.")[2].partition("```")[0]
    assert "(A3)" in praise and "(A9)" in praise
    assert "the right ones" not in praise and "right order" not in praise
