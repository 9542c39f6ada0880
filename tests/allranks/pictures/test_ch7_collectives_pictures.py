"""The states that are drawn are those of an all_reduce, and titles fit the numbers."""

import pytest

from allranks.pictures import ch7_collectives
from allranks.topics.collectives.sums import before, simulate
from tests.allranks.pictures.drawing import refuses


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ch7_collectives.hierarchy", r"5\.5 n / B", "9.5 n / B"),
    ],
)
def test_numbers_that_contradict_the_title_are_refused(name, old, new):
    """A title is a claim, so another result needs another title."""
    refuses(name, old, new)


@pytest.mark.parametrize("num", [2, 3, 4, 8])
def test_rings_and_halves_end_with_all_sums_everywhere(num):
    """The states that chapter 7's pictures show are those of an all_reduce."""
    ranks = frozenset(range(num))
    last = simulate(ch7_collectives.around(num), before("all_reduce", num))[-1]
    assert last == [dict.fromkeys(range(num), ranks)] * num
    if num & (num - 1) == 0:
        states = ch7_collectives.halve(num)
        assert len(states) == 2 * (num - 1).bit_length() + 1
        assert states[-1] == last
        middle = states[len(states) // 2]
        assert all(len(mine) == 1 and ranks in mine.values() for mine in middle)


def test_a_chain_is_done_when_the_formula_says():
    """W − 2 + k steps, and no link carries two segments at once."""
    for ranks, segments in ((4, 1), (4, 4), (3, 7)):
        sent = ch7_collectives.sent(ranks, segments)
        assert max(step for step, *_ in sent) + 1 == ranks - 2 + segments
        assert len({(step, link) for step, link, _ in sent}) == len(sent)
