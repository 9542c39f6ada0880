"""Live ranks run the schedules that the explorable shows."""

import pytest

from allranks import Ranks
from allranks.topics import Collectives
from allranks.topics.collectives import runs, sums

EVERY = [(name, way) for name, ways in sums.FORMULAS.items() for way in ways]


def compare_all(works, numbers):
    """Run every schedule in one group; return how each compares with torch's own."""
    return [runs.compare(*work, numbers, repeats=1) for work in works]


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_real_ranks_end_with_what_torch_computes(world_size):
    """Results are bit-equal, with uneven chunks too; links carry the stated bytes."""
    numbers = 4 * world_size + 1
    with Ranks(world_size) as ranks:
        found = ranks.run(compare_all, EVERY, numbers)
    for i, work in enumerate(EVERY):
        facts = Collectives.compute(*work, world_size, numbers, 1.0, 1.0, 0)
        assert all(rank[i]["equal"] for rank in found), work
        assert [rank[i]["sent"] for rank in found] == facts["links"], work


def test_the_button_says_what_was_found():
    """It compares results, bytes and time, or says why this is not possible."""
    widget = Collectives(world_size=3, numbers=10_000, step=2)
    widget.runs += 1
    measured = widget.measured
    assert measured["equal"] and measured["links"] == widget.facts["links"]
    assert measured["ratio"] > 0 and "bit for bit" in measured["summary"]
    assert "160 kB were sent, as the model says" in measured["summary"]
    widget.change(numbers=10**9)
    widget.runs += 1
    assert "numbers must be 3 to 4000000" in widget.measured["error"]


def test_bruck_passes_more_chunks_on_and_the_formula_gives_the_time():
    """With W = 8, three steps carry four chunks each; pairwise has seven of one."""
    state = dict(world_size=8, numbers=8000, alpha_us=2.0, gb_per_s=1.0, step=0)
    facts = Collectives.compute("all_to_all", "bruck", **state)
    assert facts["chunks_passed"] == 12
    assert facts["seconds"] == pytest.approx(3 * 2e-6 + 12 * 32000 / 8 / 1e9)
    assert Collectives.compute("all_to_all", "pairwise", **state)["chunks_passed"] == 7
