"""Pipelines: who works on which micro-batch when, what it costs, and where to cut.

M micro-batches pass through S stages. A schedule is written as the order of work on
each rank: ``"F2"`` is the forward pass of micro-batch 2 and ``"B2"`` its backward pass,
which may have two parts, ``"I2"`` (the gradient of the input) and ``"W2"`` (those of
the weights). With several stages per rank, ``"F2@5"`` names the stage too. All
functions are pure.
"""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from allranks.base.units import whole

WORK = re.compile(r"([FBIW])(\d+)(?:@(\d+))?")


class Work(NamedTuple):
    """One pass of one micro-batch through one stage; times in any one unit."""

    rank: int
    kind: str  # "F", "B", or its parts "I" and "W"
    microbatch: int
    stage: int
    start: float
    end: float


def bubble(num_stages: int, num_microbatches: int, stages_per_rank: int = 1) -> float:
    """Return the idle share of a rank's time: (R - 1) / (v M + R - 1).

    There are R ranks with v stages each. The formula holds for GPipe and 1F1B (v = 1)
    and for interleaved 1F1B, if all stages take equally long and messages cost nothing.

    Args:
        num_stages: S = R * v.
        num_microbatches: M.
        stages_per_rank: v.
    Raises:
        TypeError: if a number is no whole number.
        ValueError: if a number is below 1, or v does not divide S.
    Source:
        Huang et al., GPipe, 2019, section 2.3; Narayanan et al., Efficient large-scale
        language model training on GPU clusters, 2021, section 2.2 (which relates idle
        time to busy time: (R - 1) / (v M)).

    >>> bubble(4, 1), bubble(4, 8), bubble(8, 8, stages_per_rank=2)
    (0.75, 0.2727272727272727, 0.15789473684210525)
    """
    num_stages = whole("num_stages", num_stages, low=1)
    work = whole("num_microbatches", num_microbatches, low=1)
    per_rank = whole("stages_per_rank", stages_per_rank, low=1)
    if num_stages % per_rank:
        raise ValueError(f"{num_stages} stages do not share out {per_rank} per rank")
    # In units of one stage's work: R - 1 to fill and drain, and v M to do.
    num_ranks = num_stages // per_rank
    return (num_ranks - 1) / (per_rank * work + num_ranks - 1)


def gpipe(num_stages: int, num_microbatches: int) -> list[list[str]]:
    """Order the work as GPipe does: all forward passes, then all backward passes.

    >>> gpipe(2, 2)
    [['F0', 'F1', 'B0', 'B1'], ['F0', 'F1', 'B0', 'B1']]
    """
    each = range(whole("num_microbatches", num_microbatches, low=1))
    order = [f"F{i}" for i in each] + [f"B{i}" for i in each]
    return [order[:] for _ in range(whole("num_stages", num_stages, low=1))]


def one_f_one_b(num_stages: int, num_microbatches: int) -> list[list[str]]:
    """Order the work as 1F1B does: fill up, then alternate forward and backward.

    >>> one_f_one_b(2, 3)
    [['F0', 'F1', 'B0', 'F2', 'B1', 'B2'], ['F0', 'B0', 'F1', 'B1', 'F2', 'B2']]
    """
    num_stages = whole("num_stages", num_stages, low=1)
    total = whole("num_microbatches", num_microbatches, low=1)
    orders = []
    for stage in range(num_stages):
        warm_up = min(num_stages - stage, total)
        order = [f"F{i}" for i in range(warm_up)]
        for i in range(total):
            order.append(f"B{i}")
            if i + warm_up < total:
                order.append(f"F{i + warm_up}")
        orders.append(order)
    return orders


def peak_held(order: Sequence[str]) -> int:
    """Count the micro-batches whose activations a rank holds at the same time, at most.

    A rank needs the activations until it has the weights' gradients, which B or W
    computes, but not I.

    >>> [peak_held(order) for order in gpipe(4, 8)]
    [8, 8, 8, 8]
    >>> [peak_held(order) for order in one_f_one_b(4, 8)]
    [4, 3, 2, 1]
    """
    change = {"F": 1, "B": -1, "I": 0, "W": -1}
    return max(accumulate(change[work[0]] for work in order), default=0)


def timetable(
    orders: Sequence[Sequence[str]],
    forward: float = 1,
    backward: float = 2,
    weight: float = 1,
) -> list[Work]:
    """Start each piece of work as soon as its rank and its input are ready.

    F waits for the F of the stage before. B and I wait for the B or I of the stage
    after, or in the last stage for its own F, and W waits for its own I.

    Args:
        orders: each rank's order of work; stage r is on rank r unless ``@`` names it.
        forward, backward: how long a pass takes, in any one unit.
        weight: the part of backward that W takes; I takes the rest.
    Raises:
        ValueError: if a piece of work is misspelt, or waits for ever.

    >>> max(work.end for work in timetable(gpipe(2, 2)))
    9
    """
    queues = []
    for rank, order in enumerate(orders):
        matches = [WORK.fullmatch(text) for text in order]
        if None in matches:
            wrong = order[matches.index(None)]
            raise ValueError(f"{wrong!r} on rank {rank}: write F2, B2 or F2@5")
        queues.append([(m[1], int(m[2]), int(m[3] or rank)) for m in matches])
    last = max((stage for queue in queues for *_, stage in queue), default=0)
    times = {"F": forward, "B": backward, "I": backward - weight, "W": weight}
    done, free, table = {}, [0] * len(queues), []
    # Rounds, until nothing is left: in each, a rank does all that it can. It never
    # takes later work first, so one piece that cannot begin holds up its queue.
    while any(queues):
        before = len(table)
        for rank, queue in enumerate(queues):
            while queue:
                kind, i, stage = queue[0]
                if kind == "F":
                    need = ("F", i, stage - 1) if stage else None
                elif kind == "W":
                    need = "I", i, stage
                else:
                    need = ("F", i, stage) if stage == last else (kind, i, stage + 1)
                if need is not None and need not in done:
                    break
                start = max(free[rank], done.get(need, 0))
                end = start + times[kind]
                table.append(Work(rank, kind, i, stage, start, end))
                done[queue.pop(0)] = free[rank] = end
        if len(table) == before:
            stuck = [f"{q[0][0]}{q[0][1]}" for q in queues if q]
            raise ValueError(f"{stuck[0]} waits for work that never comes")
    return table


def balanced_cut(costs: Sequence[float], num_stages: int) -> list[int]:
    """Return the number of layers of each stage that makes the slowest stage fastest.

    The answer is exact: dynamic programming over (layers, stages) takes O(S L²). Every
    stage gets at least one layer.

    Args:
        costs: of each layer, in order; in any one unit (seconds, FLOPs), not negative.
        num_stages: S.
    Raises:
        TypeError: if num_stages is no whole number.
        ValueError: if there are fewer layers than stages, or a cost is negative.

    >>> balanced_cut([6, 1, 1, 1, 1, 1, 1], num_stages=2)
    [1, 6]
    """
    num_stages = whole("num_stages", num_stages, low=1)
    if len(costs) < num_stages:
        raise ValueError(f"{len(costs)} layers do not make {num_stages} stages")
    if not all(cost >= 0 for cost in costs):
        raise ValueError(f"a layer's cost must not be negative: {min(costs)}")
    sums = [0, *accumulate(costs)]  # sums[j] - sums[i]: the cost of layers i to j - 1
    ends = range(len(costs) + 1)
    best = {(0, 0): (0, ())}  # (stages, layers): the slowest stage, the cuts
    for stages in range(1, num_stages + 1):
        for end in ends[stages:]:
            best[stages, end] = min(
                (max(best[stages - 1, i][0], sums[end] - sums[i]), (*cuts, end))
                for i in ends[stages - 1 : end]
                if (cuts := best.get((stages - 1, i), (0, None))[1]) is not None
            )
    cuts = best[num_stages, len(costs)][1]
    return [b - a for a, b in pairwise((0, *cuts))]


def step_time(stage_costs: Sequence[float], num_microbatches: int) -> float:
    """Return the time that all micro-batches take through stages of unequal cost.

    The first goes through all stages, and the others follow at the pace of the slowest:
    sum(costs) + (M - 1) max(costs). It holds for GPipe's forward and its backward.

    Args:
        stage_costs: the time of each stage with one micro-batch, in any one unit.
        num_microbatches: M.

    >>> step_time([1, 1, 1, 1], 8), step_time([3, 1], 8)
    (11, 25)
    """
    work = whole("num_microbatches", num_microbatches, low=1)
    return sum(stage_costs) + (work - 1) * max(stage_costs)
