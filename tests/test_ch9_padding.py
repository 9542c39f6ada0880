"""Buckets and rows hold each text once, and little padding."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from allranks.base.paths import ROOT
from book._ext.runs import records
from scripts import ch9_padding as script

LENGTHS = st.lists(st.integers(2, script.CONTEXT), min_size=1, max_size=60)


@given(LENGTHS, st.integers(1, 9))
def test_buckets_and_rows_hold_each_text_once(lengths, size):
    """No row is longer than there is room, and no batch larger than asked for."""
    made = [torch.zeros(length) for length in lengths]
    batches, rows = script.bucket(made, size), script.fill(made)
    for found in batches, rows:
        assert sorted(id(t) for some in found for t in some) == sorted(map(id, made))
    assert max(map(len, batches)) <= size
    assert max(sum(map(len, row)) for row in rows) <= script.CONTEXT
    for some in script.in_batches(batches, 16):  # sorted inside a window
        flat = [len(t) for batch in some for t in batch]
        assert flat == sorted(flat)


def test_the_page_shows_that_buckets_and_rows_hardly_pad():
    """As they come, the sentences of a batch leave half of it empty."""
    command = records.Command("python scripts/ch9_padding.py")
    said = records.read(ROOT / "book" / "_runs", command).splitlines()
    padding = [float(line.split()[-6]) for line in said]
    assert padding[0] > 0.4 > 0.1 > padding[1] > padding[2]
