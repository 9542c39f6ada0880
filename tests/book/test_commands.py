"""The commands that the pages show print the same when they are run again."""

import re

import pytest

from allranks.base.paths import ROOT
from book._ext.runs import records
from book._tools import commands

PAGES = [p for p in sorted(ROOT.glob("book/*.md")) if "{run}" in p.read_text("utf8")]


@pytest.mark.timeout(900)  # a page may start thirty processes
@pytest.mark.replay("book/{page.name}")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_pages_commands_print_what_it_shows(page):
    """Each command, run again in the page's order, prints what its record says."""
    for command, output in commands.run_page(page):
        old = records.read(ROOT / "book" / "_runs", command)
        assert commands.same(command, old, output), (
            f"{command.line}\n{old}\n---\n{output}"
        )


TEXT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = (
    "| Driver Version: 550.40.07      CUDA Version: 12.4     |"  # cited in chapter 1
)


def test_what_a_page_quotes_of_an_output_was_printed():
    """A quoted line stands in a record, so that it changes with what is printed."""
    said = "\n".join(p.read_text("utf8") for p in ROOT.glob("book/_runs/*.txt"))
    quoted = {
        line.strip(): page.name
        for page in sorted(ROOT.glob("book/*.md"))
        for block in TEXT.findall(page.read_text("utf8"))
        for line in block.splitlines()
    }
    assert len(quoted) > 8
    unsaid = {line: page for line, page in quoted.items() if line not in said}
    assert set(unsaid) == {ELSEWHERE}
