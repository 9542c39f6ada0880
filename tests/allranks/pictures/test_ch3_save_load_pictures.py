"""Rows are cut as FSDP2 cuts them, and titles fit the numbers."""

import re

import pytest

from allranks.base.paths import ROOT
from allranks.pictures import ch3_save_load
from tests.allranks.pictures.drawing import refuses, source


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (
            "ch3_save_load.lost",
            "lost nothing: .+",
            "lost nothing: off by 1, from step 8",
        ),
    ],
)
def test_numbers_that_contradict_the_title_are_refused(name, old, new):
    """A title is a claim, so another result needs another title."""
    refuses(name, old, new)


def test_rows_are_saved_as_fully_shard_cuts_them():
    """Four ranks hold what the notebook printed of them."""
    text = (ROOT / "notebooks/ch3_save_load.ipynb").read_text()
    found = re.search(r"rows by rank: \[([\d, ]+)\]", text)[1]
    table = source("glue", "../notebooks/ch3_save_load.ipynb::ch3_dcp")
    alt = ch3_save_load.shards(table).text
    saved = [f"rank {r} has {n}" for r, n in enumerate(found.split(", "))]
    assert f"saved on 4: {', '.join(saved)}" in alt
