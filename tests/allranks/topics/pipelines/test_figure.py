"""The pipeline explorable shows what live ranks do."""

import pytest

from allranks.topics import Pipeline
from allranks.topics.pipelines import figure


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Shorten the steps, since the tests compare the order and not exact times."""
    monkeypatch.setattr(figure, "STEP_S", 0.1)


@pytest.mark.parametrize("name", ["1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"])
def test_live_ranks_work_in_the_order_shown(name):
    """Torch's schedule runs with stages that sleep; zero bubble splits the backward."""
    x = Pipeline(schedule=name, num_ranks=2, num_microbatches=3, weight_gradients=2)
    x._run(None)
    measured = x.measured
    assert measured["same"] and "exactly the order shown" in measured["summary"]
    assert 0 < measured["efficiency"] <= 1.02 * (1 - x.facts["idle"])
    kinds = {work[0] for row in measured["rows"] for work in row}
    assert kinds == (set("FB") if name == "1F1B" else set("FIW"))
    for row, model in zip(measured["rows"], x.facts["rows"], strict=True):
        for (*_, start, end), (*_, first, last) in zip(row, model, strict=True):
            assert end - start > 0.99 * (last - first)  # it slept for its time


def test_another_order_is_said(monkeypatch):
    """If torch worked in another order, the summary would say so."""
    x = Pipeline(schedule="GPipe", num_ranks=2, num_microbatches=2)
    facts = x.facts
    facts["rows"][0].reverse()
    monkeypatch.setattr(Pipeline, "facts", facts)
    measured = x.measure()
    assert not measured["same"] and "in ANOTHER order" in measured["summary"]


def test_a_moment_in_words():
    """It says which rank works, what another waits for, and what each one holds."""
    x = Pipeline(num_ranks=3, num_microbatches=3, step=4)
    facts = x.facts
    assert facts["moments"][:5] == [0, 1, 2, 3, 5]
    assert facts["now"] == [
        "idle, waits for the gradient of micro-batch 0 from rank 1",
        "backward of micro-batch 0",
        "forward of micro-batch 1",
    ]
    assert facts["held"] == [3, 2, 1] and facts["peaks"] == [3, 2, 1]
    x.step = 10**6
    assert x.facts["now"] == ["done"] * 3 and x.facts["held"] == [0, 0, 0]


def test_interleaving_costs_messages_and_memory():
    """Interleaving nearly halves the bubble, for more than twice the messages."""
    plain, twice = Pipeline(), Pipeline(schedule="Interleaved1F1B")
    assert twice.facts["idle"] < 0.6 * plain.facts["idle"]
    assert (plain.facts["messages"], twice.facts["messages"]) == (48, 112)
    assert (plain.facts["peak"], twice.facts["peak"]) == (4, 5.5)


def test_a_schedule_is_changed_in_one_step():
    """The number of stages per rank survives a schedule in which it is fixed."""
    x = Pipeline(schedule="Interleaved1F1B", stages_per_rank=4)
    x.schedule = "ZBVZeroBubble"
    assert x.facts["stages_per_rank"] == 2
    x.schedule = "Interleaved1F1B"
    assert x.facts["stages_per_rank"] == 4
