"""The commands that the pages show print the same when they are run again.

These tests are the slowest, so they have a file of their own: workers take files in
order, and ``tests/conftest.py`` puts this one first.
"""

import pytest

from allranks.base.paths import ROOT
from book._ext.runs import records
from book._tools import commands
from tests import shown

PAGES = [p for p in sorted(ROOT.glob("book/*.md")) if "{run}" in p.read_text("utf8")]
STARTED = [(page, command.line) for page, command in records.started(PAGES)]
LAUNCHED = [started for started in STARTED if started[1].startswith("torchrun ")]


@pytest.mark.timeout(400)
@pytest.mark.replay("book/{page.name}")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_pages_commands_print_what_it_shows(page):
    """Each command, run again in the page's order, prints what its record says."""

    def start(line: str) -> str:
        """Start the first command of each program for real, and fork the others.

        Torchrun itself is one of the programs; later ones only start their rank 0.
        """
        if (page.name, line) in LAUNCHED[1:]:
            return "forks:launcher"
        real = (page.name, line) in STARTED or not records.PROGRAM.search(line)
        return commands.REAL if real else "forks:popen"

    for command, output in commands.run_page(page, start):
        old = records.read(ROOT / "book" / "_runs", command)
        assert commands.same(command, old, output), (
            f"{command.line}\n{old}\n---\n{output}"
        )
        shown.keep(command.line, output)
