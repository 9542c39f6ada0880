"""The fastest algorithm is named, and live ranks run what the figure shows."""

import pytest

from allranks.topics import Crossings
from allranks.topics.links.sums import LINKS


def test_a_small_tensor_goes_by_a_tree_and_a_large_one_around_a_ring():
    crossing = Crossings().facts["crossing"]
    for factor, name in (0.9, "tree"), (1.1, "ring"):
        facts = Crossings(num_bytes=int(factor * crossing)).facts
        assert facts["fastest"] == name and f": {name} takes " in facts["summary"]


def test_halving_beats_both_if_it_may_and_can():
    assert Crossings(halving=True).facts["fastest"] == "halving"
    six = Crossings(halving=True, world_size=6).facts
    assert six["fastest"] == "ring" and "a power of two" in six["summary"]


def test_the_pages_first_question_is_answered():
    """100 MB over eight ranks and 50 GB/s take longer than 2 ms."""
    x = Crossings(world_size=8, num_bytes=10**8)
    assert x.facts["link"] == LINKS["ib400"].label
    assert x.facts["seconds"] == pytest.approx(14 * (14e-6 + 1e8 / 8 / 50e9))


def test_a_real_machine_is_near_what_its_link_predicts():
    """Eight H100 took what the fastest algorithm should, within a factor of 2."""
    x = Crossings(world_size=8, alpha_us=3.4, gb_per_s=450)
    assert len(x.facts["published"]) == 24
    for num_bytes, took in x.facts["published"]:
        x.change(num_bytes=num_bytes)
        assert 0.5 < took / x.facts["seconds"] < 2, num_bytes
    for other in {"world_size": 7}, {"gb_per_s": 451.0}:
        assert not Crossings(**{**x.state, **other}).facts["published"]


def test_live_ranks_do_it():
    """Two ranks bring a small tensor; what is too large for a laptop is refused."""
    found = Crossings(world_size=2, num_bytes=1000).measure()
    assert 0 < found["seconds"] < 30 and "2 live ranks" in found["summary"]
    for wrong in {"world_size": 9}, {"num_bytes": 10**8}:
        with pytest.raises(ValueError, match="to be really run"):
            Crossings(**wrong).measure()
