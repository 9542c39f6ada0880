"""The arithmetic of pipelines holds for any number of stages and micro-batches."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.topics.pipelines.sums import (
    balanced_cut,
    bubble,
    gpipe,
    one_f_one_b,
    peak_held,
    step_time,
    timetable,
)

stages = st.integers(1, 7)
counts = st.integers(1, 12)
costs = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@given(stages, counts, st.integers(1, 5), st.integers(1, 5))
def test_the_bubble_law_holds_for_gpipe_and_1f1b(num, count, forward, backward):
    """The idle share is (S - 1) / (M + S - 1), however long the passes take."""
    for make in gpipe, one_f_one_b:
        if make is one_f_one_b and count < num:
            continue  # torch refuses this as well
        table = timetable(make(num, count), forward, backward)
        work = sum(w.end - w.start for w in table)
        length = max(w.end for w in table)
        assert 1 - work / (num * length) == pytest.approx(bubble(num, count))


@given(stages, counts)
def test_every_pass_is_done_once_and_in_time(num, count):
    for orders in gpipe(num, count), one_f_one_b(num, count):
        table = timetable(orders)
        ends = {(w.kind, w.microbatch, w.stage): w.end for w in table}
        starts = {(w.kind, w.microbatch, w.stage): w.start for w in table}
        each = range(count)
        assert set(ends) == {(k, i, s) for k in "FB" for i in each for s in range(num)}
        for i in each:
            for s in range(1, num):
                assert starts["F", i, s] >= ends["F", i, s - 1]
                assert starts["B", i, s - 1] >= ends["B", i, s]
            assert starts["B", i, num - 1] >= ends["F", i, num - 1]
        for rank in range(num):  # a rank does one thing at a time
            mine = sorted((w.start, w.end) for w in table if w.rank == rank)
            assert all(a[1] <= b[0] for a, b in pairwise(mine))


@given(stages, counts)
def test_gpipe_holds_all_and_1f1b_as_many_as_stages_follow(num, count):
    assert [peak_held(order) for order in gpipe(num, count)] == [count] * num
    held = [peak_held(order) for order in one_f_one_b(num, count)]
    assert held == [min(num - stage, count) for stage in range(num)]


def all_cuts(layers, num):
    """Yield every way to cut layers into ``num`` stages of at least one layer."""
    for cuts in combinations(range(1, layers), num - 1):
        edges = [0, *cuts, layers]
        yield [b - a for a, b in pairwise(edges)]


def slowest(costs, sizes):
    """Return the cost of the slowest stage."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return max(sum(costs[e - n : e]) for e, n in zip(ends, sizes, strict=True))


@settings(deadline=None)
@given(costs, st.data())
def test_no_cut_is_better(costs, data):
    """No possible cut has a faster slowest stage."""
    num = data.draw(st.integers(1, len(costs)))
    found = balanced_cut(costs, num)
    assert len(found) == num and sum(found) == len(costs) and min(found) >= 1
    best = min(slowest(costs, sizes) for sizes in all_cuts(len(costs), num))
    assert slowest(costs, found) == best


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), counts)
def test_the_slowest_stage_sets_the_pace(stage_costs, count):
    """step_time equals a simulation of stages with these costs."""
    free = [0] * len(stage_costs)
    for _ in range(count):
        ready = 0
        for stage, cost in enumerate(stage_costs):
            ready = free[stage] = max(free[stage], ready) + cost
    assert step_time(stage_costs, count) == free[-1]


def test_interleaving_shrinks_the_bubble():
    assert bubble(8, 8, stages_per_rank=2) < bubble(4, 8)
    orders = [["F0@0", "F0@2", "B0@2", "B0@0"], ["F0@1", "F0@3", "B0@3", "B0@1"]]
    table = timetable(orders)
    assert (len(table), max(w.end for w in table)) == (8, 12)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: bubble(0, 1), "num_stages must be at least 1, not 0"),
        (lambda: bubble(2, 0), "num_microbatches must be at least 1, not 0"),
        (lambda: bubble(3, 4, 2), "3 stages do not share out 2 per rank"),
        (lambda: balanced_cut([1], 2), "1 layers do not make 2 stages"),
        (lambda: balanced_cut([1, -2], 2), "cost must not be negative: -2"),
        (lambda: timetable([["F0", "X1"]]), "'X1' on rank 0: write F2, B2 or F2@5"),
        (lambda: timetable([["B0", "F0"]]), "B0 waits for work that never comes"),
        (lambda: gpipe(2, 0), "num_microbatches must be at least 1, not 0"),
    ],
)
def test_refuses_impossible_numbers(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_nothing_to_do():
    assert timetable([]) == [] and peak_held([]) == 0
