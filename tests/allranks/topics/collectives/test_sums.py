"""Schedules of collectives end where the definition says, at the stated cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.topics.collectives import costs, sums
from allranks.topics.data_parallel.sums import ring_bytes

EVERY = [(name, way) for name, ways in sums.FORMULAS.items() for way in ways]
SIZES = range(1, 9)


def log2(size: int) -> int:
    """Return how many doublings lead from 1 to at least ``size``."""
    return (size - 1).bit_length()


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
class TestEach:
    """What holds for every collective and algorithm, on 1 to 8 ranks."""

    def test_ends_where_the_definition_says(self, collective, algorithm):
        """Each rank holds what is promised after the last step, and not earlier."""
        for size in SIZES:
            steps = sums.schedule(collective, algorithm, size)
            states = sums.simulate(steps, sums.before(collective, size))
            promised = sums.after(collective, size)
            done = [
                all(
                    who.items() <= has.items()
                    for who, has in zip(promised, state, strict=True)
                )
                for state in states
            ]
            assert done == [False] * len(steps) + [True]

    def test_a_rank_sends_to_one_and_receives_from_one(self, collective, algorithm):
        """A step therefore costs one message."""
        for size in SIZES:
            for step in sums.schedule(collective, algorithm, size):
                pairs = {(t.source, t.target) for t in step}
                for side in zip(*pairs, strict=True):
                    assert len(set(side)) == len(pairs)
                assert all(a != b for a, b in pairs)

    @settings(deadline=None)  # a busy machine is slow, which is no error
    @given(size=st.integers(1, 8), share=st.integers(0, 9), alpha=st.integers(0, 99))
    def test_time_is_the_formula(self, collective, algorithm, size, share, alpha):
        """If W divides n, the time is that of the formula that readers see."""
        n, bandwidth = share * size, 7.0
        steps = sums.schedule(collective, algorithm, size)
        plan = costs.messages(steps, sums.chunk_sizes(n, size))
        text = sums.FORMULAS[collective][algorithm].partition(",")[0]
        for sign, code in {
            "−": "-", " α": " * alpha", ") (": ") * (", "⌈log₂ W⌉": f"{log2(size)}",
            "2 (": "2 * (", "2 4": "2 * 4", "(W B)": "(W * B)", " n": " * n",
        }.items():  # fmt: skip
            text = text.replace(sign, code)
        text = text.replace("+ * n", "+ n").replace("(α", "(alpha")
        text = text.replace(f"2 {log2(size)}", f"2 * {log2(size)}")
        text = text.replace(f"{log2(size)} (", f"{log2(size)} * (")
        passed = round(costs.cost(collective, algorithm, size).share * size)
        names = {"W": size, "B": bandwidth, "alpha": alpha, "n": n, "k": passed}
        expected = eval(text, names)
        assert costs.seconds(plan, alpha, bandwidth) == pytest.approx(expected)
        share, count = costs.cost(collective, algorithm, size)[::-1]
        assert count * alpha + share * n / bandwidth == pytest.approx(expected)

    @settings(deadline=None)  # a busy machine is slow, which is no error
    @given(size=st.integers(1, 8), numbers=st.integers(0, 50))
    def test_bytes_are_counted_once(self, collective, algorithm, size, numbers):
        """Links carry what the transfers hold, however uneven the chunks are."""
        sizes = sums.chunk_sizes(numbers, size)
        assert sum(sizes) == numbers and max(sizes) - min(sizes) <= 1
        steps = sums.schedule(collective, algorithm, size)
        links = costs.sent(costs.messages(steps, sizes), size)
        total = sum(sizes[t.chunk % size] for step in steps for t in step)
        assert sum(map(sum, links)) == total


@settings(deadline=None)  # a busy machine is slow, which is no error
@given(size=st.integers(1, 8), share=st.integers(0, 50))
def test_the_ring_sends_what_its_paper_says(size, share):
    """Each rank sends 2 (W - 1) n / W bytes, and only to its neighbor."""
    n = share * size
    plan = costs.messages(
        sums.schedule("all_reduce", "ring", size),
        sums.chunk_sizes(n, size),
    )
    links = costs.sent(plan, size)
    for rank, row in enumerate(links):
        assert sum(row) == row[(rank + 1) % size] == ring_bytes(size, n)


@settings(deadline=None)  # a busy machine is slow, which is no error
@given(
    collective=st.sampled_from(list(sums.FORMULAS)),
    size=st.integers(1, 8),
    alpha=st.floats(0, 1e-3),
    n=st.floats(0, 1e9),
)
def test_the_fastest_is_the_fastest(collective, size, alpha, n):
    """At any size, no other algorithm in the list takes less time."""
    bandwidth = 1e9
    times = {}
    for way in sums.FORMULAS[collective]:
        steps, share = costs.cost(collective, way, size)
        times[way] = steps * alpha + share * n / bandwidth
    ranges = costs.fastest(collective, size, alpha, bandwidth)
    starts = [start for _, start in ranges]
    assert starts == sorted(starts)
    best = [way for way, start in ranges if start <= n][-1]
    assert times[best] == pytest.approx(min(times.values()))


def test_a_schedule_that_errs_is_noticed():
    """No rank may send what it lacks or add twice, and names have to be known."""
    move = sums.Transfer(0, 1, 0, "reduce")
    with pytest.raises(ValueError, match="adds numbers twice"):
        sums.simulate([[move], [move]], sums.before("all_reduce", 2))
    with pytest.raises(ValueError, match="rank 1 has no chunk 0"):
        sums.simulate(
            [[sums.Transfer(1, 0, 0, "copy")]],
            sums.before("broadcast", 2),
        )
    with pytest.raises(ValueError, match="all_gather has no tree here"):
        sums.schedule("all_gather", "tree", 2)
    with pytest.raises(ValueError, match="no collective scan"):
        sums.schedule("scan", "tree", 2)
    with pytest.raises(ValueError, match="world_size must be at least 1"):
        sums.schedule("broadcast", "tree", 0)


def test_in_a_ring_nobody_waits_and_in_a_tree_ever_more_ranks_do():
    """A rank waits if a step has no message for it; a naive all_reduce moves one."""
    for size in range(2, 9):
        plans = {
            way: costs.messages(sums.schedule("all_reduce", way, size), [1] * size)
            for way in sums.FORMULAS["all_reduce"]
        }
        idle = {
            way: [len(costs.waiting(step, size)) for step in plan]
            for way, plan in plans.items()
        }
        assert set(idle["ring"]) == {0} and set(idle["naive"]) == {size - 2}
        up = [size - 2 * len(step) for step in plans["tree"]]
        assert idle["tree"] == up and up[log2(size) - 1] == size - 2
        # All steps of the naive way take equally long.
        share = costs.wait_share(plans["naive"], size, alpha=2.0, bandwidth=3.0)
        assert share == pytest.approx((size - 2) / size)
        assert costs.wait_share(plans["ring"], size, 2.0, 3.0) == 0
