"""The commands that the pages show print the same when they are run again."""

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
