"""What each way of sending less costs follows from what its ranks hand over."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.topics.compression.sums import BUCKET, Job, waits, ways
from allranks.topics.crossings.sums import all_reduce, seconds

JOB = Job(8, 12, 64, 0.02, 1e9, True, 500, 4, 10)
ALPHA, BANDWIDTH = 50e-6, 125e6


@dataclass
class Costs:
    """The ways of a job by their names."""

    job: Job
    alpha: float = ALPHA
    bandwidth: float = BANDWIDTH

    def __getattr__(self, name):
        found = ways(self.job, self.alpha, self.bandwidth)
        return next(way for way in found if way.name == name)


def test_without_compression_it_is_the_ring_of_the_chapter_before():
    """One bucket takes what `crossings` says; 2 buckets take twice the messages."""
    ring = all_reduce(8)["ring"]
    want = seconds(ring, 4 * JOB.numbers, ALPHA, BANDWIDTH)
    assert Costs(JOB).none.communication == pytest.approx(want)
    large = JOB._replace(matrices=JOB.matrices * 200)
    assert large.buckets == -(-4 * large.numbers // BUCKET) > 1
    assert Costs(large).none.messages == ring.steps * large.buckets


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 1024), st.integers(1, 40), st.integers(1, 1600))
def test_top_k_sends_more_than_the_ring_if_ranks_times_share_exceed_one(size, m, kept):
    job = JOB._replace(world_size=size, matrices=1, width=m, kept=min(kept, m * m))
    costs = Costs(job)
    more = costs.topk.sent > costs.none.sent * (1 + 1e-12)
    assert more == (size * job.kept > job.numbers)


def test_powersgd_sends_r_numbers_for_each_row_and_column():
    """4 × (64 + 64) numbers of 4 bytes for each of 12 matrices, in two all_reduces."""
    way, plain = Costs(JOB).powersgd, Costs(JOB).none
    assert way.handed == 4 * 4 * (64 + 64) * 12
    assert way.messages == 2 * plain.messages
    assert way.sent / plain.sent == pytest.approx(2 * 4 / 64)


def test_local_steps_share_one_message_and_are_never_hidden():
    local, plain = Costs(JOB).local, Costs(JOB).none
    assert local.communication == pytest.approx(plain.communication / JOB.inner_steps)
    assert local.exposed == local.communication


def played(communication, backward, buckets):
    """Return what ``waits`` says, found by sending one bucket after the other."""
    free = 0.0
    for number in range(1, buckets + 1):
        ready = backward * number / buckets
        free = max(ready, free) + communication / buckets
    return free - backward


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 10), st.floats(0, 10), st.integers(1, 50))
def test_a_bucket_leaves_when_its_gradients_exist(communication, backward, buckets):
    found = waits(communication, backward, buckets)
    assert found == pytest.approx(played(communication, backward, buckets), abs=1e-9)


@pytest.mark.parametrize("method", ["none", "bf16", "topk", "powersgd"])
def test_nothing_hides_a_single_bucket(method):
    """Backward has ended when its gradients are complete."""
    assert JOB.buckets == 1
    way = getattr(Costs(JOB), method)
    assert way.exposed == way.communication > 0


@pytest.mark.parametrize("bandwidth", [1e6, 1e8, 1e15])
def test_backward_hides_all_buckets_but_its_last(bandwidth):
    """On slow links it hides its own length of sending, on fast ones all but one."""
    job = JOB._replace(matrices=JOB.matrices * 500)
    alone = Costs(job._replace(overlap=False), ALPHA, bandwidth).none
    over = Costs(job, ALPHA, bandwidth).none
    assert alone.exposed == alone.communication
    kept = (job.buckets - 1) / job.buckets
    saved = min(alone.communication * kept, 2 / 3 * job.compute * kept)
    assert alone.step - over.step == pytest.approx(saved)
    assert over.exposed == pytest.approx(alone.communication - saved)


def test_encoding_is_not_hidden():
    """However fast the link is, a search for the largest values takes its time."""
    topk = Costs(JOB, 0, 1e15).topk
    assert topk.step == pytest.approx(JOB.compute + 4 * JOB.numbers / JOB.search)
    slow = Costs(JOB, ALPHA, 1e5)  # all of them wait as well
    for way in slow.bf16, slow.powersgd, slow.topk:
        assert 0 < way.encoding < way.exposed
        assert way.step == pytest.approx(JOB.compute + way.encoding + way.exposed)
    assert slow.bf16.encoding < slow.powersgd.encoding < slow.topk.encoding
