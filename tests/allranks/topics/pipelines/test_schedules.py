"""Our orders and refusals are torch's, and our formulas hold where there is one."""

from itertools import product
from types import SimpleNamespace

import pytest
from torch import nn
from torch.distributed.pipelining import schedules as torchs

from allranks.topics.pipelines.schedules import (
    NAMES,
    idle_share,
    stages_of,
    write_orders,
)
from allranks.topics.pipelines.sums import peak_held, timetable


def nothing(*args, **kwargs) -> list:
    """Return an empty list of sends or receives."""
    return []


def stand_in(index: int, rank: int, num_ranks: int, num_stages: int) -> SimpleNamespace:
    """Return what a schedule needs of a stage; it records what it is told to do."""
    log = []
    names = "get_fwd_recv_ops", "get_fwd_send_ops", "perform_reduce_grad"
    names += ("release_fwd_send_outputs",)  # of torch 2.15
    return SimpleNamespace(
        stage_index=index,
        group_rank=rank,
        group_size=num_ranks,
        num_stages=num_stages,
        is_first=index == 0,
        is_last=index == num_stages - 1,
        has_backward=True,
        submod=nn.Identity(),
        log=log,
        forward_one_chunk=lambda i, *args, **kwargs: log.append(f"F{i}@{index}"),
        backward_one_chunk=lambda i, **kwargs: log.append(f"B{i}@{index}"),
        get_bwd_recv_ops=nothing,
        get_bwd_send_ops=nothing,
        **dict.fromkeys(names, nothing),
    )


def torch_order(name, num_ranks, count, per_rank) -> list[list[str]]:
    """Return what torch's schedule does, or plans to do, on each rank."""
    kind, orders = torchs.get_schedule_class(name), []
    for rank, indices in enumerate(stages_of(name, num_ranks, per_rank)):
        place = rank, num_ranks, num_ranks * per_rank
        stages = [stand_in(index, *place) for index in indices]
        if issubclass(kind, torchs.PipelineScheduleSingle):
            schedule = kind(stages[0], count)
            schedule._initialize_stage = nothing
            schedule._step_microbatches([()] * count, [{}] * count)
            orders.append(stages[0].log)
            continue
        actions = kind(stages, count).pipeline_order_with_comms
        orders.append(
            [
                f"{a.computation_type.value}{a.microbatch_index}@{a.stage_index}"
                for a in actions[rank]
                if a.computation_type.value in "FBIW"
            ]
        )
    return orders


def answer(call, *args):
    """Return what a function returns, or the sentence with which it refuses."""
    try:
        return call(*args)
    except ValueError as error:
        return str(error)


SIZES = {name: [1, 2, 3] if "Inter" in name else [1] for name in NAMES}
SIZES["ZBVZeroBubble"] = [2]


@pytest.mark.parametrize("name", NAMES)
def test_every_order_and_every_refusal_is_torchs(name):
    """They agree for 1 to 5 ranks and 1 to 12 micro-batches, and each order ends."""
    refused = 0
    for args in product(range(1, 6), range(1, 13), SIZES[name]):
        ours = answer(write_orders, name, *args)
        assert ours == answer(torch_order, name, *args), args
        if isinstance(ours, str):
            refused += 1
            continue
        works = timetable(ours, 1, 2, 1)
        assert len(works) == sum(map(len, ours))
        places = stages_of(name, args[0], args[2])
        assert all(work.stage in places[work.rank] for work in works)
    assert (refused > 0) == (name == "1F1B" or "Inter" in name)


TIMES = list(product([1, 2, 3], repeat=3))


def idle(name, num_ranks, count, per_rank, times) -> float:
    """Return the idle share of a timetable."""
    forward, first, second = times
    orders = write_orders(name, num_ranks, count, per_rank)
    works = timetable(orders, forward, first + second, second)
    busy = count * per_rank * sum(times)
    return 1 - busy / max(work.end for work in works)


@pytest.mark.parametrize("name", NAMES)
def test_the_formula_holds_where_there_is_one(name):
    """It holds for passes of any length, as far as its own condition is met."""
    found = 0
    for num_ranks, count, per_rank in product((1, 2, 4), (4, 7, 8), SIZES[name]):
        for times in TIMES:
            law = idle_share(name, num_ranks, count, per_rank, times)
            if law:
                share = idle(name, num_ranks, count, per_rank, times)
                assert share == pytest.approx(law["idle"]), (num_ranks, count, times)
                found += 1
    assert (found >= 100) == (name != "ZBVZeroBubble")


def test_zero_bubble_saves_time_at_the_memory_of_1f1b():
    """ZB-H1 of Qi et al. has a third of the bubble if F = I = W, in equal memory."""
    for ranks, count in product((2, 3, 4, 6), (6, 12)):
        third = write_orders("InterleavedZeroBubble", ranks, count)
        whole = write_orders("1F1B", ranks, count)
        ends = [max(w.end for w in timetable(o, 1, 2, 1)) for o in (third, whole)]
        bubbles = [end - 3 * count for end in ends]
        assert 3 * bubbles[0] == bubbles[1] == 3 * (ranks - 1)
        assert max(map(peak_held, third)) == max(map(peak_held, whole)) == ranks


def test_what_the_page_says_of_its_figure():
    """Chapter 6 quotes the idle shares on four ranks, and what each schedule holds."""
    shares, held = {}, {}
    for forward, count in (1, 8), (2, 8), (1, 16):
        for name in NAMES:
            per_rank = 1 if name in ("GPipe", "1F1B") else 2
            share = idle(name, 4, count, per_rank, (forward, 1, 1))
            shares.setdefault((forward, count), []).append(round(100 * share))
            orders = write_orders(name, 4, count, per_rank)
            held[count, name] = max(map(peak_held, orders))
    assert shares[1, 8] == [27, 27, 16, 6, 6]
    assert shares[2, 8] == [27, 27, 16, 9, 11]
    assert all(map(int.__gt__, shares[1, 8], shares[1, 16]))
    assert [held[16, n] - held[8, n] for n in NAMES] == [8, 0, 0, 0, 0]


def test_zbv_has_no_idle_time_within_if_all_takes_equally_long():
    """No rank then holds more than the first of 1F1B, R micro-batches of its share."""
    for ranks, count in ((1, 3), (2, 8), (4, 8), (6, 12)):
        orders = write_orders("ZBVZeroBubble", ranks, count)
        works = timetable(orders, 1, 2, 1)
        for rank in range(ranks):
            mine = [w for w in works if w.rank == rank]
            assert mine[-1].end - mine[0].start == 6 * count
        assert max(map(peak_held, orders)) == 2 * ranks
    works = timetable(write_orders("ZBVZeroBubble", 4, 8), 2, 3, 1)
    mine = [w for w in works if w.rank == 0]
    assert mine[-1].end - mine[0].start > 2 * 8 * 5  # unequal times: idle


def test_refuses_what_is_no_schedule():
    with pytest.raises(ValueError, match="no schedule gpipe: there are GPipe, 1F1B"):
        write_orders("gpipe", 2, 2)
