"""Batches and steps are counted as torch's own sampler and loader do."""

import doctest
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from allranks.topics.batches import sums
from allranks.topics.batches.sums import (
    global_batch_size,
    samples_per_rank,
    scaled_lr,
    steps_per_epoch,
)


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(sums).attempted >= 4
    assert doctest.testmod(sums).failed == 0


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 50), st.booleans())
def test_steps_agree_with_torch(num_samples, world_size, batch_size, drop_last):
    """Every rank's sampler and loader give our counts, for any sizes."""
    data = range(num_samples)
    for rank in range(world_size):
        sampler = DistributedSampler(data, world_size, rank, drop_last=drop_last)
        if num_samples >= world_size or not drop_last:  # otherwise torch cannot iterate
            assert len(list(sampler)) == len(sampler)
        loader = DataLoader(data, batch_size, sampler=sampler, drop_last=drop_last)
        assert len(sampler) == samples_per_rank(num_samples, world_size, drop_last)
        assert len(loader) == steps_per_epoch(
            num_samples, batch_size, world_size, drop_last
        )


@given(st.integers(1, 10**9), st.integers(1, 10**4), st.integers(1, 10**4))
def test_an_epoch_covers_the_data_and_little_more(num_samples, batch_size, world_size):
    steps = steps_per_epoch(num_samples, batch_size, world_size)
    per_step = global_batch_size(batch_size, world_size)
    assert (steps - 1) * per_step < num_samples <= steps * per_step
    padded = world_size * samples_per_rank(num_samples, world_size)
    assert num_samples <= padded < num_samples + world_size


@given(st.integers(1, 512), st.integers(1, 512), st.integers(1, 64))
def test_what_counts_is_the_product(batch_size, world_size, num_accumulated):
    ours = global_batch_size(batch_size, world_size, num_accumulated)
    assert ours == batch_size * world_size * num_accumulated


@given(st.floats(1e-6, 10), st.integers(1, 10**6), st.integers(1, 10**6))
def test_scaling_there_and_back_changes_nothing(base_lr, small, large):
    for rule in ("linear", "sqrt"):
        there = scaled_lr(base_lr, small, large, rule)
        assert math.isclose(scaled_lr(there, large, small, rule), base_lr)
    linear = scaled_lr(base_lr, small, large) / base_lr
    assert math.isclose(
        linear, (scaled_lr(base_lr, small, large, "sqrt") / base_lr) ** 2
    )


def test_the_impossible_is_refused():
    with pytest.raises(ValueError, match=r"^batch_size must be at least 1, not 0$"):
        steps_per_epoch(100, 0)
    with pytest.raises(ValueError, match=r"^world_size must be at least 1, not 0$"):
        samples_per_rank(100, 0)
    with pytest.raises(TypeError, match=r"^num_samples must be a whole number"):
        steps_per_epoch(1e3, 32)
    with pytest.raises(ValueError, match=r"^base_lr must be positive, not 0$"):
        scaled_lr(0, 256, 512)
    with pytest.raises(
        ValueError, match=r"^rule must be 'linear' or 'sqrt', not 'log'$"
    ):
        scaled_lr(0.1, 256, 512, rule="log")
