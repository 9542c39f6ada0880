"""Buckets are as torch makes them, and the time of a step follows from them."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.parallel import distributed

from allranks import Ranks
from allranks.topics import Buckets
from allranks.topics.buckets import runs, sums
from allranks.topics.buckets.models import MODELS, Layer, layers_of
from scripts import ch5_single

CAPS = st.one_of(st.none(), st.floats(0, 0.05))


def layers_and_machines():
    """Return a strategy for some layers and a machine."""
    numbers = st.lists(st.integers(1, 3000), max_size=3).map(tuple)
    layer = st.builds(Layer, st.just("a"), numbers, st.floats(0, 100))
    positive = st.floats(0.1, 1e3)
    return st.tuples(
        st.lists(layer, min_size=1, max_size=8),
        st.integers(1, 64),
        positive.map(lambda speed: speed * 1e9),
        st.integers(1, 64),
        st.floats(0, 1e-3),
        positive.map(lambda speed: speed * 1e6),
    )


@example([1, 1, 1], 4, 8)  # a bucket that is full to the last byte
@settings(deadline=None)  # a busy machine is slow, which is no error
@given(
    st.lists(st.integers(1, 100), max_size=30), st.integers(0, 99), st.integers(0, 99)
)
def test_gradients_are_put_together_as_torch_does(numbers, first, other):
    """The result equals that of the function which DDP's reducer calls."""
    tensors = [torch.empty(number) for number in numbers]
    sizes = [tensor.nbytes for tensor in tensors]
    found = sums.assign(sizes, first, other)
    if tensors:
        theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [first, other])
        assert found == theirs
    assert [i for bucket in found for i in bucket] == list(range(len(numbers)))


def test_caps_are_torchs():
    """The first bucket is smaller only if no size is given."""
    for value in (None, 25, 0.5, 0):
        config = distributed._BucketCapacityConfig.create(value, None, False)
        mine = config.first_bucket_bytes_cap, config.bucket_bytes_cap
        assert sums.caps(value) == mine


def test_the_digits_network_is_chapter_fives():
    """Parameters are the same, in the same order, and GPT-2 has 124 million."""
    net = ch5_single.make_task(10)[2]
    numbers = [number for layer in MODELS["digits"] for number in layer.numbers]
    assert numbers == [p.numel() for p in net.parameters()]
    assert sum(sum(layer.numbers) for layer in MODELS["gpt2"]) == 124_439_808


@settings(deadline=None)  # a busy machine is slow, which is no error
@given(layers_and_machines(), CAPS)
def test_what_holds_for_every_step(given_step, cap):
    """No bucket is sent before it is ready, twice, or together with another."""
    layers = given_step[0]
    step = sums.step(*given_step, sums.caps(cap))
    sent = sum(bucket.num_bytes for bucket in step.buckets)
    assert sent == 4 * sum(sum(layer.numbers) for layer in layers)
    free = 0.0
    for bucket in step.buckets:
        assert max(bucket.ready, free) == bucket.start <= bucket.end
        assert bucket.ready <= step.computed * (1 + 1e-9)
        free = bucket.end
    assert step.backward == pytest.approx(2 * step.forward)
    assert step.computed <= step.total
    assert step.total <= (step.computed + step.sending) * (1 + 1e-9)
    landed = [0] * len(layers)
    for bucket in step.buckets:  # each gradient falls into a bucket, and none twice
        assert bucket.num_bytes == sum(part for _, part in bucket.pieces)
        assert bucket.ready == max(step.layers[i][3] for i, _ in bucket.pieces)
        for i, part in bucket.pieces:
            landed[i] += part
    assert landed == [num_bytes for _, num_bytes, _, _ in step.layers]
    for bucket in step.buckets:  # ready only after backward: cannot hide
        if bucket.ready >= step.computed:
            least = step.computed + bucket.end - bucket.start
            assert step.total >= least * (1 - 1e-9)


def test_one_bucket_hides_nothing():
    """A single bucket has to wait for the whole backward pass."""
    one = sums.step(MODELS["mlp"], 8, 1e12, 4, 1e-5, 1e9, sums.caps(1e6))
    assert len(one.buckets) == 1
    assert one.total == pytest.approx(one.computed + one.sending)
    many = sums.step(MODELS["mlp"], 8, 1e12, 4, 1e-5, 1e9, sums.caps(1))
    assert many.total < one.total


@pytest.mark.parametrize(
    ("model", "cap"), [("own", None), ("own", 0.5), ("own", 0.0), ("digits", 0.1)]
)
def test_ddp_has_the_same_buckets(model, cap):
    """Real ranks train models of this size, and the reducer's buckets are the same."""
    text = "100000:1, 40000:1, 70000:1, 9:0.1, 200000:1, 200000:1"
    layers = layers_of(model, text)
    plan = sums.step(layers, 1, 1e12, 2, 0, 1e9, sums.caps(cap))
    with Ranks(2) as ranks:
        found = ranks.run(runs.measure, layers, 1, cap, timeout=60)
    for one in found:
        assert one["bucket_bytes"] == [bucket.num_bytes for bucket in plan.buckets]
        names = [name for *_, name in one["trace"]["comm"]]
        assert names == ["gloo:all_reduce"] * len(plan.buckets)


def test_the_button_lays_the_measured_beside_the_model():
    """It shows lanes, buckets and a ratio, or why they cannot be measured here."""
    widget = Buckets(model="digits", batch_size=4, world_size=2, bucket_cap_mb=0.1)
    widget.runs += 1
    measured = widget.measured
    assert measured["bucket_bytes"] == [bucket[0] for bucket in widget.facts["buckets"]]
    assert measured["ratio"] > 0 and measured["trace"]["ranks"] == 2
    assert "3 buckets, as the model says" in measured["summary"]
    for state, reason in (
        ({"model": "gpt2"}, "498 MB of gradients and .* are too much"),
        ({"world_size": 9}, "world_size must be 2 to 8"),
    ):
        widget.change(**state)
        widget.runs += 1
        with pytest.raises(ValueError, match=reason):
            raise ValueError(widget.measured["error"])
