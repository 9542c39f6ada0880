"""The commands that the pages show, run again: the slowest tests, in their own file.

Files are shared out among the workers in their order, so these begin early.
"""

from pathlib import Path

import pytest

from book._ext import records
from book._tools import commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(ROOT.glob("book/*.md"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_pages_commands_print_what_it_shows(page):
    """Each command is run again, in order; its record says the same."""
    for command, output in commands.run_page(page):
        old = records.read(ROOT / "book" / "_runs", command)
        assert commands.same(command, old, output), (
            f"{command.line}\n{old}\n---\n{output}"
        )
