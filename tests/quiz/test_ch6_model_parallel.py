"""What backs the quizzes of chapter 6."""

import itertools
import re

import pytest
import torch
from torch import nn

from allranks.base.paths import ROOT
from allranks.topics.pipelines.schedules import stages_of, write_orders
from allranks.topics.pipelines.sums import (
    bubble,
    gpipe,
    one_f_one_b,
    peak_held,
    timetable,
)
from tests.quiz.proofs import law

BACKED = {  # by something that can't run here, or that runs elsewhere
    "ch6_ddp_is_not": "errata/b3_ddp_is_not_model_parallel.py",
}


def makespan(orders):
    """Return the time at which the last piece of work ends."""
    return max(work.end for work in timetable(orders))


def test_ch6_naive_split():
    """Two halves without micro-batches take as long as the whole."""
    whole = max(work.end for work in timetable(gpipe(1, 1), forward=2, backward=4))
    assert makespan(gpipe(2, 1)) == whole


def test_ch6_size_or_number():
    """The percentages in the answer are the bubble's."""
    assert round(100 * bubble(4, 8)) == 27
    assert round(100 * bubble(4, 4)) == 43


@law
def test_ch6_held(stages, batches):
    assert peak_held(gpipe(stages, batches)[0]) == batches
    assert peak_held(one_f_one_b(stages, batches)[-1]) == 1
    return peak_held(one_f_one_b(stages, batches)[0])


def test_ch6_column_row():
    """A split by outputs, then by inputs, gives summands that are added once."""
    torch.manual_seed(0)
    x, first, second = torch.randn(5, 3), torch.randn(8, 3), torch.randn(2, 8)
    whole = torch.relu(x @ first.T) @ second.T
    shares = zip(first.chunk(4, dim=0), second.chunk(4, dim=1), strict=True)
    summands = [torch.relu(x @ a.T) @ b.T for a, b in shares]
    torch.testing.assert_close(sum(summands), whole)
    assert not torch.allclose(summands[0], whole)


def own_idle(works, rank):
    """Return a rank's idle time between its own first and last piece of work."""
    mine = [work for work in works if work.rank == rank]
    span = max(work.end for work in mine) - min(work.start for work in mine)
    return span - sum(work.end - work.start for work in mine)


def test_the_pages_linear_layer_is_torchs():
    """The two halves of a backward pass on the page agree with autograd."""
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [3.0, 1.0]], requires_grad=True)
    dy = torch.tensor([[1.0, 1.0]])
    dx, dw = torch.autograd.grad(nn.functional.linear(x, weight), (x, weight), dy)
    assert dx.tolist() == [[4.0, 1.0]] == (dy @ weight).tolist()
    assert dw.tolist() == [[1.0, 2.0], [1.0, 2.0]] == (dy.T @ x).tolist()
    page = (ROOT / "book" / "ch6_model_parallel.md").read_text("utf8")
    assert "= (4, 1)" in page and "the rows 1 · (1, 2) and 1 · (1, 2)" in page


@pytest.mark.parametrize("name", ["1F1B", "InterleavedZeroBubble"])
def test_the_pages_table_of_what_ranks_hold(name):
    """The table holds the peaks of the orders, which other tests compare with torch."""
    page = (ROOT / "book" / "ch6_model_parallel.md").read_text("utf8")
    (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", page, re.MULTILINE)
    held = [peak_held(order) for order in write_orders(name, 4, 8)]
    assert [int(cell) for cell in row.split("|")] == held


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zero_bubble_schedules_keep_what_the_page_promises(ranks):
    """A third of the bubble remains, and no rank holds more than with 1F1B.

    Rank r puts off the weights' part of at most r micro-batches.
    Source: Qi et al., 2023, sections 2.1 (ZB-H1) and 6 (ZBV).
    """
    count = 2 * ranks
    name, plain = "InterleavedZeroBubble", write_orders("1F1B", ranks, count)
    split = write_orders(name, ranks, count)
    idle = [makespan(orders) - 3 * count for orders in (plain, split)]
    assert idle == [3 * (ranks - 1), ranks - 1]
    for rank, order in enumerate(split):
        owed = itertools.accumulate({"I": 1, "W": -1}.get(x[0], 0) for x in order)
        # Just before a W, its own micro-batch still counts among those put off.
        assert max(owed) == rank + 1
    assert {peak_held(order) for order in split} == {peak_held(plain[0])} == {ranks}

    for enough in (2 * ranks - 1, count, 3 * ranks):
        orders = write_orders("ZBVZeroBubble", ranks, enough)
        works = timetable(orders, forward=1, backward=2, weight=1)
        assert [own_idle(works, rank) for rank in range(ranks)] == [0] * ranks
        assert {peak_held(order) for order in orders} <= {2 * ranks, 2 * ranks - 1}
    few = timetable(write_orders("ZBVZeroBubble", ranks, 2 * ranks - 2))
    assert any(own_idle(few, rank) for rank in range(ranks))
    place = {
        s: r for r, own in enumerate(stages_of("ZBVZeroBubble", ranks, 2)) for s in own
    }
    hops = [place[s] != place[s + 1] for s in range(2 * ranks - 1)]
    assert sum(hops) == 2 * (ranks - 1)
