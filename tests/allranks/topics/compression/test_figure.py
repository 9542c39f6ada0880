"""The figure says where it pays to send less, and live ranks hand over what it says."""

import pytest

from allranks.topics import Compression
from allranks.topics.compression.figure import LABELS, MODELS
from allranks.topics.links.sums import LINKS

ETHERNET = {"alpha_us": LINKS["eth1"].alpha_us, "gb_per_s": LINKS["eth1"].gb_per_s}
HOME = {"alpha_us": LINKS["home"].alpha_us, "gb_per_s": LINKS["home"].gb_per_s}


def changed(**state):
    """Return an explorable in which several parts are changed at once."""
    x = Compression()
    x.change(**state)
    return x


def setup(number):
    """Return the state of one of the models."""
    return {k: v for k, v in MODELS[number]._asdict().items() if k != "label"}


def test_what_backward_hides_need_not_be_compressed():
    """The large model's 1,031 buckets hide on NVLink; the small one has only one."""
    fast = {"alpha_us": 3.4, "gb_per_s": 450.0}
    facts = changed(**setup(2), **fast).facts
    assert facts["fastest"] == "none" and "Nothing is faster" in facts["summary"]
    assert changed(**setup(2), **fast, overlap=False).facts["fastest"] != "none"
    small = changed(**setup(0), **ETHERNET).facts
    assert small["buckets"] == 1 and small["fastest"] != "none"
    alone = changed(**setup(0), **ETHERNET, overlap=False).facts
    assert small["step"] == alone["step"]
    assert changed(**setup(1), **ETHERNET).facts["fastest"] == "powersgd"


def test_the_first_link_lies_between_two_crossings():
    """Ten times slower or faster, and another way has the shortest step."""
    x = Compression()
    found = [changed(gb_per_s=x.gb_per_s * by).facts["fastest"] for by in (0.1, 1, 10)]
    assert found == ["powersgd", "local", "none"]


def test_a_shorter_step_may_teach_less():
    """Top-k's step is shorter, and takes longer to the same loss; some are unknown."""
    facts = Compression().facts
    steps = dict(zip(LABELS, (way[7] for way in facts["ways"]), strict=True))
    good = dict(zip(LABELS, facts["as_good"], strict=True))
    assert good["none"] == steps["none"] and good["bf16"] == steps["bf16"]
    assert steps["topk"] < steps["none"] < good["topk"]
    other = changed(keep_percent=2.0, approx_rank=3, inner_steps=21).facts["as_good"]
    assert other == [good["none"], good["bf16"], None, None, None]


def test_top_k_is_best_for_few_ranks_and_worst_for_many():
    """Its values go to all ranks, so a thousand of them make it the slowest."""
    few = changed(**setup(1), method="topk", world_size=2, **HOME).facts
    many = changed(**setup(1), method="topk", world_size=1024, **HOME).facts
    steps = {way[0]: way[7] for way in many["ways"]}
    assert few["more_from"] == many["more_from"] == 101
    assert few["fastest"] in ("topk", "powersgd")
    assert max(steps, key=steps.get) == "topk"
    assert "without it, " in many["summary"]


def test_all_models_and_links_have_their_labels():
    for number, model in enumerate(MODELS):
        assert changed(**setup(number)).facts["model"] == model.label
    assert changed(width=65).facts["model"] == ""
    assert changed(alpha_us=51).facts["link"] == ""


@pytest.mark.parametrize("method", LABELS)
def test_live_ranks_hand_over_what_the_figure_says(method):
    """To the byte, for each method, on two ranks."""
    x = changed(method=method, world_size=2, matrices=3, width=10, keep_percent=7)
    says = {way[0]: way[1] for way in x.facts["ways"]}[method]
    found = x.measure()
    assert found["handed"] == says > 0
    assert "2 live ranks" in found["summary"]


def test_too_many_ranks_are_not_run():
    with pytest.raises(ValueError, match="world_size must be at most 8 to be really"):
        changed(world_size=9).measure()


def test_two_matrices_stand_for_a_model_that_does_not_fit():
    """The 7B model's button runs, says what it ran, and is right for that."""
    x = changed(method="bf16", world_size=2, matrices=1000, width=64)
    small = changed(method="bf16", world_size=2, matrices=2, width=512)
    says = {way[0]: way[1] for way in small.facts["ways"]}["bf16"]
    found = x.measure()
    assert found["handed"] == says > 0
    assert found["summary"].startswith("Two matrices of 512 x 512 stand for all.")
    assert x.matrices == 1000  # the figure stays as it is
