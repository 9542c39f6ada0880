"""The model of DataParallel's step holds and moves the bytes of torch's own class."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks import Ranks, vgpu
from allranks.topics import DataParallelForward
from allranks.topics.data_parallel import figure
from allranks.topics.data_parallel.sums import PARTS, STAGES, Step, shares, step_bytes

SMALL = {
    "batch_size": 8,
    "num_devices": 3,
    "param_mb": 10,
    "input_mb": 1,
    "activation_mb": 5,
    "output_mb": 2,
    "optimizer": "SGD with momentum",
    "loss_inside": False,
    "stage": 0,
    "memory_mb": 2000,
}
CHANGES = [
    {},
    {"num_devices": 1},
    {"num_devices": 4, "batch_size": 5, "loss_inside": True},
    {"num_devices": 4, "batch_size": 1, "optimizer": "Adam"},
    {"num_devices": 8, "input_mb": 0, "activation_mb": 0, "output_mb": 0},
    {"num_devices": 2, "optimizer": "SGD", "output_mb": 30},
    {"num_devices": 1, "loss_inside": True, "optimizer": "Adam"},
]


def test_torch_holds_and_moves_what_the_model_says():
    """They agree after each stage, on each device and way; no two parts are equal."""
    states = [{**SMALL, **change} for change in CHANGES]
    with Ranks(1) as ranks:
        for state in states:
            [played] = ranks.run(figure.play, state)
            facts = DataParallelForward.compute(**state)
            alone = state["num_devices"] == 1
            missing = ["replicate", "parallel_apply", "backward"] if alone else []
            assert [name for name in STAGES if name not in played] == missing
            for name, found in played.items():
                at = STAGES.index(name)
                assert found["held"] == facts["totals"][at], (state, name)
                assert found["moved"] == facts["moves"][at], (state, name)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(1, 9), *[st.integers(0, 99)] * 2)
def test_even_shares_move_what_the_formula_says(num_devices, each, params, outputs):
    """The page's formula counts the same bytes for each device."""
    step = Step([each] * num_devices, params, 3, 5, outputs, 0, False)
    counts = [[0, 0] for _ in range(num_devices)]
    for name in STAGES:
        for source, target, size in step.moves(name):
            if source != "host":
                counts[source][0] += size
                counts[target][1] += size
    law = step_bytes(num_devices, params, num_devices * each * outputs)
    assert [tuple(count) for count in counts] == law


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 512), st.integers(1, 8))
def test_shares_are_chunks_and_no_share_is_empty(size, num_devices):
    """Torch cuts in the same way, so there may be fewer shares than devices."""
    cut = shares(size, num_devices)
    assert sum(cut) == size and len(cut) <= num_devices and min(cut) >= 1
    assert cut == [len(p) for p in torch.arange(size).split(-(-size // num_devices))]


def test_only_device_0_holds_anything_between_steps():
    """What device 0 holds more than the others is what the picture shows."""
    x = DataParallelForward()
    for stage in "start", "step":
        held = x.facts["memory"][STAGES.index(stage)]
        weights, state = (PARTS.index(name) for name in ("weights", "optimizer state"))
        assert held[0][weights] == 400 and held[0][state] == 800
        assert sum(held[0]) == 1200 and not any(map(sum, held[1:]))
    outside, others = x.facts["fullest"][:2]
    x.loss_inside = True
    assert x.facts["fullest"][0] < outside and x.facts["fullest"][1] >= others


def test_a_device_runs_out_in_the_first_stage_that_needs_more():
    """What is just full still fits."""
    x = DataParallelForward()
    assert x.facts["runs_out"] == [STAGES.index("gather"), None, None, None]
    x.memory_mb = x.facts["fullest"][0]
    assert x.facts["runs_out"] == [None] * 4


def test_a_stage_that_is_not_reached_is_not_told():
    """The step ends in gather, and with more memory it goes on."""
    said = DataParallelForward(stage=STAGES.index("backward")).facts["summary"]
    assert "Stage backward: Not reached, because gather ran out of memory." in said
    at_the_end = DataParallelForward(stage=STAGES.index("gather")).facts["summary"]
    assert "It does not fit: the step ends here. Device 0 would hold" in at_the_end
    more = DataParallelForward(stage=STAGES.index("backward"), memory_mb=4000)
    assert "Gradients of the outputs go out" in more.facts["summary"]


def test_no_device_waits_that_moves_or_computes_something():
    """To send, receive or compute is work; the loss is device 0's."""
    for change in CHANGES:
        facts = DataParallelForward.compute(**{**SMALL, **change})
        assert not any(facts["waits"][STAGES.index("start")])
        for at, stage in enumerate(STAGES[1:], start=1):
            busy = {end for move in facts["moves"][at] for end in move[:2]} - {"host"}
            if stage in ("parallel_apply", "backward"):
                busy |= set(range(len(facts["shares"])))
            waits = {i for i, still in enumerate(facts["waits"][at]) if still}
            assert not waits & (busy | {0})
            if stage in ("loss", "step"):
                assert waits == set(range(1, len(facts["totals"][at])))


def test_the_button_runs_torch_and_names_a_difference(monkeypatch):
    """The notebook's virtual GPUs are not touched, and a state too large is refused."""
    x = DataParallelForward(**SMALL)
    with vgpu.plugged_in(2):
        mine = torch.ones(1, device="vgpu:1")
        measured = x.measure()
        assert torch.accelerator.device_count() == 2 and mine.item() == 1
    assert measured["summary"].endswith("holds and moves what the model says.")
    assert measured["stages"]["replicate"]["moved"] == [[0, 1, 10], [0, 2, 10]]

    def play(state):
        return {"gather": {"held": [1, 2, 3], "moved": []}}

    monkeypatch.setattr(figure, "play", play)
    assert x.measure()["summary"].startswith("gather: [[1, 0, 6], [2, 0, 4]] moved in")
    big = {"batch_size": 512, "activation_mb": 200, "output_mb": 100}
    with pytest.raises(ValueError, match="more than 100 GB"):
        DataParallelForward(**{**SMALL, **big}).measure()
