"""What the figure says of a loader, and what a real DataLoader does."""

import pytest

from allranks.topics import Loader


def test_the_limit_is_named_and_so_is_what_would_help():
    """Workers, the model, or cores: the smallest bound decides."""
    few, many = Loader(num_workers=2), Loader(num_workers=4)
    assert few.facts["limit"] == "workers" and few.facts["enough"] == 3
    assert "The workers are the limit; up to 3 workers help." in few.facts["summary"]
    assert many.facts["limit"] == "model" and "do not help" in many.facts["summary"]
    assert many.facts["per_s"] > 1.15 * few.facts["per_s"]
    poor = Loader(num_workers=8, cores=2).facts
    assert poor["limit"] == "cores" and "The 2 cores are the limit" in poor["summary"]
    assert poor["per_s"] <= poor["bounds"]["cores"] < many.facts["per_s"]


def test_a_model_on_the_same_cores_slows_its_own_loader():
    """On two cores, a step that computes there leaves less for the workers."""
    apart = Loader(num_workers=2, cores=2)
    shared = Loader(num_workers=2, cores=2, model_on_cpu=True)
    assert shared.facts["per_s"] < 0.9 * apart.facts["per_s"]


def test_without_workers_nothing_is_loaded_ahead():
    """Then prefetch_factor means nothing, and a step takes load and step."""
    x = Loader(num_workers=0, prefetch_factor=9, jitter=0)
    assert x.facts["room"] == x.facts["most_ready"] == 0
    assert x.facts["per_s"] == pytest.approx(1000 / 85)
    assert "Nobody loads while it works" in x.facts["summary"]
    one = Loader(num_workers=1, jitter=0, load_ms=20.0)
    assert one.facts["per_s"] == pytest.approx(40)  # the start is left out
    assert one.facts["model_waits"] == pytest.approx(0, abs=1e-9)


def test_more_prefetching_absorbs_what_varies_and_costs_memory():
    """Batches of very different load times: a longer queue evens them out."""
    state = {"num_workers": 3, "step_ms": 22.0, "jitter": 100}
    short = Loader(prefetch_factor=1, **state).facts
    long = Loader(prefetch_factor=8, **state).facts
    assert long["per_s"] > 1.1 * short["per_s"]
    assert "This is by the averages" in long["summary"]
    assert "by the averages" not in Loader(jitter=0).facts["summary"]
    assert long["room_bytes"] == 8 * short["room_bytes"] == 240e6


@pytest.mark.parametrize(("num_workers", "prefetch_factor"), [(0, 2), (1, 3), (3, 2)])
def test_a_real_loader_is_as_far_ahead(num_workers, prefetch_factor):
    """Counts of prepared batches, and the workers' turns, are the model's."""
    x = Loader(num_workers=num_workers, prefetch_factor=prefetch_factor)
    found = x.measure()
    room = num_workers * prefetch_factor
    assert found["counts"] == [room + taken for taken in (1, 2, 3, 4)]
    assert found["equal"] and f"{room} ahead, as the model says" in found["summary"]


def test_too_many_workers_are_not_started():
    with pytest.raises(ValueError, match="at most 8 to be really run"):
        Loader(num_workers=9).measure()
