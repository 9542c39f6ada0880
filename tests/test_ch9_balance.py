"""Shares of equal work, and what a slow rank makes of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allranks import Ranks
from scripts import ch9_balance as script
from tests.ranks import run_script

WORK = st.lists(st.floats(0.1, 100), min_size=1, max_size=50)
SPEEDS = st.lists(st.floats(0.2, 4), min_size=1, max_size=6)


@given(WORK, SPEEDS, st.sampled_from(script.WAYS))
def test_every_split_gives_each_sentence_to_one_rank(work, speeds, way):
    shares = script.split(work, speeds, way)
    assert sorted(i for some in shares for i in some) == list(range(len(work)))
    assert len(shares) == len(speeds)


@given(WORK, st.integers(1, 6))
def test_longest_first_is_within_a_third_of_the_best(work, world_size):
    """Graham's bound, 4/3 - 1/(3W), against a bound that nobody can beat."""
    speeds = [1.0] * world_size
    shares = script.split(work, speeds, "longest first")
    ends = [sum(work[i] for i in some) for some in shares]
    order = sorted(work, reverse=True)
    two = sum(order[world_size - 1 : world_size + 1]) if len(work) > world_size else 0
    best = max(sum(work) / world_size, order[0], two)
    assert max(ends) <= (4 / 3) * best + 1e-9 or max(ends) <= best + order[-1]


@given(WORK, SPEEDS)
def test_whoever_is_free_loses_at_most_one_piece_of_work(work, speeds):
    """No rank starts anything after another one has nothing left to do."""
    shares = script.split(work, speeds, "whoever is free")
    ends = [
        sum(work[i] for i in some) / speed
        for some, speed in zip(shares, speeds, strict=True)
    ]
    for some, speed, end in zip(shares, speeds, ends, strict=True):
        if some:
            assert end - work[some[-1]] / speed <= min(ends) + 1e-9


RUN = """
from scripts import ch9_balance as script

[script.busy([[5.0, 1, 1, 1], [2, 2]], [1.0, 0.5], way, "cpu") for way in script.WAYS]
"""


def test_the_ranks_measure_what_a_steps_slowest_rank_costs():
    # Longest rank: (6 | 2 / .5), then (2 | 4): 10; with speed known (5 | 3 / .5)
    # and both on rank 0 (4) or one on each (4): 10; 12 of work, 1.5 of speed.
    with Ranks(2) as ranks:
        for busy in ranks.run(RUN, quiet=True):
            assert busy[0] == pytest.approx(12 / (1.5 * 10))
            assert busy[2] == pytest.approx(12 / (1.5 * 10))


def test_the_same_gradient_in_another_split_has_other_bits():
    """Its sum is the same up to rounding, and the same split gives the same bits."""

    def sums():
        import torch
        import torch.distributed as dist

        from scripts import ch9_balance as script

        work, speeds = [float(i % 7 + 1) for i in range(40)], [1.0, 1.0]
        shares = [script.split(work, speeds, way) for way in script.WAYS[:2]]
        assert dist.get_world_size() == 2
        return [
            script.sum_split(work, some, 3, torch.device("cpu"))
            for some in (shares[0], shares[0], shares[1])
        ]

    with Ranks(2) as ranks:
        for same, again, other in ranks.run(sums, quiet=True):
            assert torch.equal(same, again) and not torch.equal(same, other)
            torch.testing.assert_close(same, other, rtol=0, atol=1e-4)


def test_the_script_says_what_each_split_costs():
    lines = run_script("ch9_balance", 4, "--steps", "5")[0]
    said = [line.partition("] ")[2] for line in lines]
    assert [line.split(":")[0] for line in said[:4]] == list(script.WAYS)
    busy = [
        (float(line.split("busy ")[1].split(",")[0]), float(line.split()[-1]))
        for line in said[:4]
    ]
    assert busy[0][0] < 0.9 < 0.98 < busy[1][0] and busy[1][1] < 0.65
    assert busy[2][1] > 0.98 and 0.85 < busy[3][1] < busy[2][1]
    assert said[4].startswith("another split, the same gradient: False, off by")


def test_a_rank_that_would_sleep_for_ever_is_refused():
    for slower in "1e6", "1e30", "0.001":
        with pytest.raises(SystemExit, match=r"must be 0\.01 to 100, times as slow"):
            script.parse_args([f"--slower={slower}"])
