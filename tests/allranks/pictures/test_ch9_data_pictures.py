"""Lanes and buffers are those of the script, and titles fit the numbers."""

import itertools

import pytest

from allranks.pictures import ch9_data
from scripts import ch9_data as script
from tests.allranks.pictures.drawing import refuses


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ch9_data.workers", r"(read, 2 workers.*waited) \d+%", r"\1 60%"),
        ("ch9_data.seeds", "32 of 32 different, unch", "31 of 32 different, unch"),
        ("ch9_data.padding", r"in buckets: 0\.\d+", "in buckets: 0.45"),
        ("ch9_data.uneven", r"(pad: .*off by) 0.000", r"\1 0.100"),
        ("ch9_data.cuts", r"(cut in a header, alone:) 20", r"\1 ReadError: no"),
    ],
)
def test_numbers_that_contradict_the_title_are_refused(name, old, new):
    """A title is a claim, so another result needs another title."""
    refuses(name, old, new)


def test_lanes_and_buffers_are_those_of_the_script(monkeypatch):
    """What the pictures compute is what chapter 9's script does."""
    lanes = script.deal(6144, ch9_data.LANES, "0 1")
    ends = sorted({shard.start for shard in itertools.chain(*lanes)})
    numbers = [[ends.index(shard.start) for shard in shards] for shards in lanes]
    assert ch9_data.dealt("0 1") == numbers
    stream = script.Stream(None, lanes, "0 1", 12, (1, 3))
    first = stream.rank + stream.world_size * 0
    mine = list(range(first, len(lanes), stream.world_size))
    assert mine == [i for i in range(8) if ch9_data.reader(i, 3) == 1]
    for size in ch9_data.BUFFERS:
        monkeypatch.setattr(script, "BUFFER", size)
        assert [*script.shuffle(range(256), 0)] == ch9_data.shuffled(256, size)
