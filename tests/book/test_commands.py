"""The commands that the pages show, run again: the slowest tests, in their own file.

Files are shared out among the workers in their order, so these begin early.
"""

import pytest

from allranks.paths import ROOT
from book._ext.runs import records
from book._tools import commands

PAGES = sorted(ROOT.glob("book/*.md"))
STARTED = {(page, command.line) for page, command in records.started(PAGES)}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_pages_commands_print_what_it_shows(page):
    """Each command is run again, in order; its record says the same."""

    def start(line: str) -> str:
        """Start the first command of each program for real, and fork the others."""
        real = (page.name, line) in STARTED or not records.PROGRAM.search(line)
        return commands.REAL if real else "forks:popen"

    for command, output in commands.run_page(page, start):
        old = records.read(ROOT / "book" / "_runs", command)
        assert commands.same(command, old, output), (
            f"{command.line}\n{old}\n---\n{output}"
        )
