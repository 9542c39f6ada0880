"""Of a long output or diff, a page shows the lines that matter and folds the whole."""

import doctest

import pytest

from book._ext.paper.readable import readable
from book._ext.runs import fold, records
from tests.book.test_extensions import NEW, OLD, build, diff, words

__all__ = ["build"]  # the fixture

COMMAND = records.Command("python scripts/x.py")
RECORD = f"book/_runs/{COMMAND.record}"
EPOCHS = [f"epoch={n} loss={9 - n}.5" for n in range(9)]
OUTPUT = "\n".join([f"$ {COMMAND.line}\nexit 0", *EPOCHS, ""])


def run(show: str) -> str:
    """Return a page's block that shows some lines of an output."""
    return f"```{{run}} {COMMAND.line}\n:show: {show}\n```\n"


def test_the_examples_in_the_docstrings_hold():
    """Every example in the module gives what it says."""
    result = doctest.testmod(fold)
    assert result.attempted and not result.failed


def test_an_output_shows_what_matters_and_folds_the_whole(build):
    """First and last epoch, a sign between them, and all nine in a <details>."""
    html, warnings = build(run("epoch=0 | epoch=8"), **{RECORD: OUTPUT})
    assert not warnings
    shown, _, rest = html.partition("<details")
    shown = words(shown).partition(COMMAND.line)[2].strip()
    assert shown == f"{EPOCHS[0]}\n⋮\n{EPOCHS[8]}"
    assert "<summary>All 9 lines</summary>" in rest
    assert "\n".join(EPOCHS) in words(rest)
    paper = words(readable(html))
    assert "epoch=4" not in paper
    assert f"All 9 lines: {RECORD}" in paper


def test_several_lines_may_match_and_a_sign_never_replaces_one_line():
    """From one line to another; a line alone between two that are shown stays."""
    text = "\n".join(EPOCHS)
    assert fold.that_matter(text, "(?s)epoch=1.*epoch=3") == "\n".join(EPOCHS[1:4])
    assert fold.that_matter(text, "epoch=[13]") == "\n".join(EPOCHS[1:4])
    assert fold.that_matter(text, "epoch=[14]").splitlines()[1] == fold.GAP


def test_a_diff_shows_what_matters_and_says_on_paper_where_the_whole_is(build):
    """Its head stays, since a diff without names says nothing."""
    files = {"old.py": OLD, "new.py": NEW}
    html, warnings = build(diff(":show: return 2"), **files)
    assert not warnings
    shown, _, rest = html.partition("<details")
    assert "--- old.py\n+++ new.py\n+    return 2" in words(shown)
    assert "return 3" not in words(shown) and "return 3" in words(rest)
    paper = words(readable(html))
    assert "return 3" not in paper and "compare old.py and new.py" in paper


@pytest.mark.parametrize(
    ("show", "complaint"),
    [
        ("epoch=0 | epoch=99", "epoch=99 finds nothing in 9 lines"),
        ("epoch", "finds all 9 lines"),
        ("epoch=(", "missing )"),
    ],
)
def test_a_pattern_that_shows_nothing_or_everything_fails_the_build(
    build, show, complaint
):
    """A page can't promise a line that the record no longer has."""
    _, warnings = build(run(show), **{RECORD: OUTPUT})
    assert complaint in warnings
    _, warnings = build(diff(":show: gone"), **{"old.py": OLD, "new.py": NEW})
    assert "gone finds nothing" in warnings


def test_a_brief_diff_leaves_the_whole_out(build):
    """It says how many lines there are, and where they are."""
    old, new = "a = 1\nb = 2\nc = 3\n", "a = 1\nb = 4\nc = 5\n"
    page = "```{chapter-diff} new.py\n:diff: old.py\n:show: ^.b\n:brief:\n```\n"
    html, warnings = build(page, **{"old.py": old, "new.py": new})
    assert "All 8 lines: compare old.py and new.py" in html and not warnings
    assert "<details" not in html and "c = 5" not in html


def test_a_piece_of_a_diff_shows_its_lines_and_no_more(build):
    """The names and the whole stand below the last piece."""
    old, new = "a = 1\nb = 2\nc = 3\n", "a = 1\nb = 4\nc = 5\n"
    page = "```{chapter-diff} new.py\n:diff: old.py\n:show: ^.b\n:piece:\n```\n"
    html, warnings = build(page, **{"old.py": old, "new.py": new})
    assert "+b = 4" in words(html) and not warnings
    assert "c = 5" not in html and "+++" not in html and "All 8 lines" not in html
