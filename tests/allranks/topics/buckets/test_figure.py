"""The percentage in the summary agrees with the times."""

import pytest

from allranks.topics import Buckets


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"world_size": 1}, "100 % of it"),
        ({"world_size": 2, "batch_size": 65536}, "over 99 % of it"),
        ({"alpha_us": 1e6, "tflops": 100}, "under 1 % of it"),
        ({"model": "own", "layers": "9:0", "alpha_us": 1}, " 0 % of it"),
    ],
)
def test_no_part_that_is_there_is_nothing(changes, words):
    """100 % is said only if nothing is exposed, and 0 % only if nothing computes."""
    facts = Buckets(**changes).facts
    assert words in facts["summary"]
    assert (words == "100 % of it") == (facts["exposed"] < 5e-9)


def test_the_curve_is_what_each_size_leaves_exposed():
    """The same figure says it with that bucket_cap_mb; the last has one bucket."""
    x = Buckets()
    curve = x.facts["curve"]
    for number in (0, 3, 17, 24, 40):
        x.bucket_cap_mb = 2 ** (number / 4)
        assert x.facts["exposed"] == curve[number]
    assert len(x.facts["buckets"]) == 1 and len(curve) == 41
    assert x.facts["exposed"] == pytest.approx(x.facts["sending"])


def test_own_layers_begin_with_an_example_that_shows_overlap():
    """Both lanes have something in them, and some of the sending is hidden."""
    facts = Buckets(model="own").facts
    hidden = facts["sending"] - facts["exposed"]
    assert 0.1 < facts["sending"] / facts["backward"] < 10
    assert 0.1 < hidden / facts["sending"] < 0.9


def test_times_that_nobody_waits_for_have_units_or_are_refused():
    """A long time is written in days, and a time too long is refused."""
    summary = Buckets(alpha_us=1e6, world_size=65536).facts["summary"]
    assert " d of it is exposed" in summary
    for name, value in (("alpha_us", 1e7), ("tflops", 1e-4), ("gb_per_s", 1e-9)):
        with pytest.raises(ValueError, match=f"{name} must be at"):
            Buckets.compute(**{**Buckets().state, name: value})
