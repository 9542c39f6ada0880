"""What backs the quizzes of chapter 7."""

import pytest

from allranks.topics.collectives.costs import cost, messages
from allranks.topics.collectives.sums import schedule
from tests.quiz.proofs import law

BACKED = {  # by something that can't run here, or that runs elsewhere
    "ch7_new_group": "clinic/new-group-subset.py",
}


@law
def test_ch7_steps(ranks):
    return len(schedule("all_reduce", "ring", ranks))


@law
def test_ch7_bus(ranks, size, time):
    sent = cost("all_reduce", "ring", ranks).share * size
    return sent / (time / 1000)


def test_ch7_bits(two):
    source = """
from scripts import ch7_collectives as ch7
group = dist.group.WORLD
x = torch.randn(9, 999, generator=torch.Generator().manual_seed(rank))
one, other = x[:, :99].sum(0), sum(x[:, :99].flip(0))
by_ring = one.clone()
ch7.ring(by_ring)
both = [torch.empty_like(by_ring) for _ in range(2)]
dist.all_gather(both, by_ring)
torch.equal(one, other), torch.equal(*both)
"""
    assert two.run(source, quiet=True) == [(False, True)] * 2


def test_ch7_slowest():
    plan = messages(schedule("all_reduce", "ring", 8), [1000] * 8)

    def took(speed):  # of the link from rank 3 to rank 4; the others have 10
        return sum(
            max(m[4] / (speed if m[:2] == (3, 4) else 10) for m in step)
            for step in plan
        )

    assert took(1) == pytest.approx(10 * took(10))
