"""The page to start with: the same losses, however many ranks share the batch."""

import re

from allranks.base.paths import ROOT
from book._ext.runs import records


def test_the_runs_on_the_page_print_the_same_losses():
    """1, 2, 4 and 8 ranks, and two machines, average what one batch of 128 gives."""
    page = (ROOT / "book" / "start.md").read_text("utf8")
    runs = [c for c in records.commands(page) if "start_ddp.py" in c.line]
    losses = [
        re.findall(r"loss=([\d.]+)", records.read(ROOT / "book" / "_runs", run))
        for run in runs
    ]
    assert len(runs) == 5 and len(losses[0]) == 5
    assert losses == [losses[0]] * 5
