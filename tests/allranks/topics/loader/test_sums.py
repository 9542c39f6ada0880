"""Laws of a loader as a queue, whatever the loads, the workers and the cores are."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.topics.loader.sums import (
    bounds,
    depths,
    enough,
    load_times,
    rates,
    simulate,
)

NEAR = 1e-6
times = st.floats(0.5, 50)
games = st.fixed_dictionaries({
    "loads": st.lists(times, min_size=1, max_size=40),
    "step": times,
    "num_workers": st.integers(0, 6),
    "prefetch_factor": st.integers(1, 4),
    "cores": st.integers(1, 8),
    "on_core": st.booleans(),
})  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(games)
def test_nothing_is_faster_than_its_slowest_part(game):
    """An epoch takes at least what the model, the workers and the cores need for it."""
    loads, step, workers = game["loads"], game["step"], game["num_workers"]
    end = simulate(**game)[-1].done
    compute = len(loads) * step
    assert end >= compute - NEAR
    assert end >= sum(loads) / max(1, workers) - NEAR
    if workers:
        busy = sum(loads) + (compute if game["on_core"] else 0)
        assert end >= busy / game["cores"] - NEAR
    else:
        assert end == pytest.approx(sum(loads) + compute)
    mean, per_s = sum(loads) / len(loads), 1000 * len(loads) / end
    shared = game["cores"], game["on_core"]
    for part, most in bounds(mean, step, workers, *shared).items():
        assert per_s <= most * (1 + NEAR) or (part == "cores" and not workers)


@settings(max_examples=150, deadline=None)
@given(games)
def test_batches_keep_their_order_and_their_worker(game):
    """Round robin, one at a time on each worker, and the model takes them in order."""
    batches, workers = simulate(**game), game["num_workers"]
    for b, (one, load) in enumerate(zip(batches, game["loads"], strict=True)):
        assert one.worker == (b % workers if workers else 0)
        assert one.asked <= one.start <= one.ready <= one.taken < one.done
        assert one.ready - one.start >= load - NEAR
        assert one.done - one.taken >= game["step"] - NEAR
    for before, after in itertools.pairwise(batches):
        assert before.done <= after.taken
    for w in range(workers):
        mine = batches[w::workers]
        assert all(a.ready <= b.start for a, b in itertools.pairwise(mine))


@settings(max_examples=150, deadline=None)
@given(games)
def test_never_more_is_ahead_than_may_be(game):
    """What was asked for and not taken is at most workers times prefetch_factor."""
    batches = simulate(**game)
    room = game["num_workers"] * game["prefetch_factor"]
    assert max(depth for _, depth in depths(batches)) <= room
    assert min(depth for _, depth in depths(batches)) == 0
    if room:
        for b, one in enumerate(batches[room:]):
            assert one.asked == batches[b].taken
        assert all(one.asked == 0 for one in batches[:room])


@settings(max_examples=100, deadline=None)
@given(games.filter(lambda game: game["num_workers"] > 0))
def test_nobody_waits_without_a_reason(game):
    """The model waits only for its batch; a worker only if it has been asked for none.

    With a core for each process, a load takes what it takes alone.
    """
    game["cores"] = game["num_workers"] + 1
    batches, workers = simulate(**game), game["num_workers"]
    free = 0.0
    for one, load in zip(batches, game["loads"], strict=True):
        assert one.taken == pytest.approx(max(free, one.ready))
        assert one.ready - one.start == pytest.approx(load)
        free = one.done
    for w in range(workers):
        free = 0.0
        for one in batches[w::workers]:
            assert one.start == pytest.approx(max(free, one.asked))
            free = one.ready


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), times, st.integers(1, 8), st.booleans())
def test_more_than_enough_workers_bring_nothing_and_fewer_lose(load, step, cores, own):
    """With equal loads, `enough` workers reach the bound, but for start and end."""
    num, most = 400, bounds(load, step, 1, cores, own)
    best = min(most["model"], most["cores"])
    count = enough(load, step, cores, own)

    def per_s(workers):
        return (
            1000 * num / simulate([load] * num, step, workers, 4, cores, own)[-1].done
        )

    assert per_s(count + 3) <= best * (1 + NEAR)
    if not own and count <= cores:
        assert per_s(count) >= 0.85 * best
    if count > 1:
        fewer = bounds(load, step, count - 1, cores, own)["workers"]
        assert fewer < best
        assert per_s(count - 1) <= fewer * (1 + NEAR)


def test_two_workers_on_one_core_are_as_fast_as_one():
    """Time on a core is shared, so both loads end after twice their time."""
    found = simulate([10.0, 10.0], 1.0, 2, 1, cores=1, on_core=False)
    assert [one.ready for one in found] == [20.0, 20.0]


@pytest.mark.parametrize("jitter", [0.0, 0.3, 1.0])
def test_times_vary_as_much_as_was_asked(jitter):
    """The mean stays, the ends are reached nearly, and it is the same each time."""
    found = load_times(2000, 10.0, jitter)
    assert found == load_times(2000, 10.0, jitter)
    assert sum(found) / 2000 == pytest.approx(10.0, abs=0.3)
    low, high = 10 * (1 - jitter), 10 * (1 + jitter)
    assert low <= min(found) <= low + 0.1 and high - 0.1 <= max(found) <= high


def test_cores_that_all_share_are_used_up():
    """With workers enough, two cores do nothing but load and compute."""
    found = simulate([60.0] * 400, 20.0, 6, 2, cores=2, on_core=True)
    most = bounds(60.0, 20.0, 6, cores=2, on_core=True)
    assert most["cores"] == 25.0
    assert 0.97 * 25 < 1000 * 400 / found[-1].done <= 25


@settings(max_examples=100, deadline=None)
@given(times, times, st.integers(0, 6), st.integers(1, 4), st.booleans())
def test_without_the_start_the_bounds_are_reached(load, step, workers, ahead, own):
    """With a core for each process, the rate is the least bound."""
    shared = workers + 1, own
    played = simulate([load] * (60 + workers * ahead), step, workers, ahead, *shared)
    per_s, model_waits, workers_wait = rates(played, 60, workers)
    assert per_s == pytest.approx(min(bounds(load, step, workers, *shared).values()))
    assert model_waits == pytest.approx(1 - per_s * step / 1000, abs=NEAR)
    assert 0 <= workers_wait + NEAR < 1
    if workers == 1:
        assert workers_wait == pytest.approx(1 - per_s * load / 1000, abs=0.05)
