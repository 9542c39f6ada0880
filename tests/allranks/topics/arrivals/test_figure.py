"""What the figure says that a cell prints is what real ranks print."""

import pytest

from allranks.topics import Arrivals


@pytest.mark.parametrize(
    "arrives", [[0, 200, 100, 0], [0, None, 300, 0], [None, 0, None, None], [None] * 4]
)
def test_live_ranks_print_what_the_figure_shows(arrives, monkeypatch):
    """The output of four live ranks is the figure's, letter by letter."""
    monkeypatch.setattr("allranks.topics.arrivals.figure.TIMEOUT", 1)
    widget = Arrivals(arrives=arrives)
    measured = widget.measure()
    assert measured["output"] == widget.facts["output"] and measured["same"]
    assert measured["summary"] == "Four live ranks: just as shown above."


def test_who_waits_and_for_how_long():
    """All wait for the last; if one never comes, until the timeout."""
    facts = Arrivals.compute([700, 1600, 1100, 2200])
    assert facts["waits"] == pytest.approx([1.5, 0.6, 1.1, 0])
    assert facts["waited_s"] == pytest.approx(3.2)
    assert facts["holds"] == [6] * 4 and facts["output"] == "ranks 0–3: tensor([6.])"
    facts = Arrivals.compute([700, None, 1100, 2200])
    assert facts["waits"] == pytest.approx([2.3, 0, 1.9, 0.8])
    assert facts["waited_s"] == pytest.approx(5)
    assert facts["holds"] == [0, 1, 2, 3] and "rank 1 finished" in facts["output"]
    facts = Arrivals.compute([1000] * 4)
    assert facts["waited_s"] == 0 and "nobody waits" in facts["summary"]
