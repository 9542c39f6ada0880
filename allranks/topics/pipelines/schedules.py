"""The orders of work that PyTorch's pipeline schedules produce, by name.

Their names are those of ``torch.distributed.pipelining.schedules.get_schedule_class``,
and tests compare every order and every refusal with torch's own. Work is written as in
``sums``. Zero-bubble schedules split a backward pass into ``I`` (the gradient of the
stage's input, for which the stage before waits) and ``W`` (those of its weights, for
which no other stage waits). All functions are pure.

GPipe and 1F1B, and the timetable of any order, are in ``sums``; here are the
interleaved and the zero-bubble orders, and the choice by name.
"""

from collections.abc import Sequence

from allranks.base.units import whole
from allranks.topics.pipelines.sums import gpipe, one_f_one_b

NAMES = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")


def stages_of(name: str, num_ranks: int, stages_per_rank: int) -> list[list[int]]:
    """Return the stages of each rank: dealt in turns, or for ZBV down and up again.

    Args:
        name: one of ``NAMES``.
        num_ranks: R.
        stages_per_rank: v; ZBV always has two.

    >>> stages_of("Interleaved1F1B", 2, 2), stages_of("ZBVZeroBubble", 2, 2)
    ([[0, 2], [1, 3]], [[0, 3], [1, 2]])
    """
    if name == "ZBVZeroBubble":
        return [[rank, 2 * num_ranks - 1 - rank] for rank in range(num_ranks)]
    each = range(num_ranks)
    return [[i * num_ranks + r for i in range(stages_per_rank)] for r in each]


def write_orders(
    name: str, num_ranks: int, num_microbatches: int, stages_per_rank: int = 1
) -> list[list[str]]:
    """Return the order of work on each rank.

    Args:
        name: one of ``NAMES``.
        num_ranks: R.
        num_microbatches: M.
        stages_per_rank: of the interleaved schedules; ZBV has two, the others one.
    Raises:
        TypeError: if a number is no whole number.
        ValueError: if a number is below 1 or there is no such schedule; and where torch
            refuses, in torch's words.

    >>> write_orders("InterleavedZeroBubble", 2, 2)[0]
    ['F0@0', 'F1@0', 'I0@0', 'W0@0', 'I1@0', 'W1@0']
    """
    ranks = whole("num_ranks", num_ranks, low=1)
    count = whole("num_microbatches", num_microbatches, low=1)
    per_rank = whole("stages_per_rank", stages_per_rank, low=1)
    if name not in NAMES:
        raise ValueError(f"no schedule {name}: there are {', '.join(NAMES)}")
    # torch's sentence, word for word; GPipe and the others take fewer.
    if name == "1F1B" and count < ranks:
        raise ValueError(
            f"Number of microbatches ({count}) must be greater than or equal to the "
            f"number of stages ({ranks})."
        )
    if name == "ZBVZeroBubble":
        return [_zbv(ranks, count, rank) for rank in range(ranks)]
    if name.startswith("Interleaved"):
        return [_interleaved(name, ranks, count, per_rank, r) for r in range(ranks)]
    orders = {"GPipe": gpipe, "1F1B": one_f_one_b}[name](ranks, count)
    return [[f"{work}@{r}" for work in order] for r, order in enumerate(orders)]


def idle_share(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    stages_per_rank: int,
    times: Sequence[float],
) -> dict | None:
    """Return the formula of the idle share and its value, or None if there is none.

    Args:
        name: one of ``NAMES``.
        num_ranks, num_microbatches, stages_per_rank: R, M and v.
        times: of one stage with one micro-batch, in any one unit: F for forward, I for
            the gradient of the input, W for the gradients of the weights.
    Source:
        Huang et al., 2019, section 2.3; Narayanan et al., 2021, section 2.2; Qi et al.,
        Zero bubble pipeline parallelism, 2023 (ZB-H1), which holds while W is short.

    >>> idle_share("1F1B", 4, 8, 1, (1, 1, 1))["idle"]
    0.2727272727272727
    >>> idle_share("InterleavedZeroBubble", 4, 8, 1, (1, 1, 1))["idle"]
    0.1111111111111111
    """
    # While the pipeline fills and drains, a rank waits R - 1 times for a stage's work.
    # With a split backward, W needs no input of another rank and fills part of it.
    forward, first, second = times
    even, hops = num_microbatches % num_ranks == 0, num_ranks - 1
    if name in ("GPipe", "1F1B") or (name == "Interleaved1F1B" and even):
        idle, formula = hops * sum(times), "(R − 1) / (v M + R − 1)"
    elif name == "InterleavedZeroBubble" and second <= min(times) and even:
        idle = hops * (forward + first - second)
        formula = "x / (v M (F + I + W) + x) with x = (R − 1)(F + I − W)"
    else:
        return None
    busy = stages_per_rank * num_microbatches * sum(times)
    return {"formula": formula, "idle": idle / (busy + idle)}


def _interleaved(
    name: str, ranks: int, count: int, per_rank: int, rank: int
) -> list[str]:
    """Order 1F1B over several stages, in rounds of about R micro-batches each.

    Source: torch.distributed.pipelining.schedules, ``_get_1f1b_rank_ops``.
    """
    split, rounds = name == "InterleavedZeroBubble", max(1, count // ranks)
    if count % rounds:
        title = "Zero bubble" if split else "Interleaved 1F1B"
        raise ValueError(
            f"{title} requires the number of microbatches to be a multiple of the "
            f"number of rounds ({rounds}), but got {count}."
        )
    size, total = count // rounds, count * per_rank
    hops = (1 if split else 2) * (ranks - 1 - rank)
    warm_up = min((per_rank - 1) * size + hops, total)

    def pieces(kind: str, turns: range) -> list[str]:
        """Go through the rank's stages in turns of ``size`` micro-batches each."""
        stages = [i * ranks + rank for i in turns]
        found, done = [], [0] * len(stages)
        for step in range(total):
            local = step // size % per_rank
            found.append(f"{kind}{done[local]}@{stages[local]}")
            done[local] += 1
        return found

    forward = pieces("F", range(per_rank))
    backward = pieces("I" if split else "B", range(per_rank)[::-1])
    weight = [f"W{work[1:]}" for work in backward] if split else []
    order, owed = forward[:warm_up], 0
    for step, work in enumerate(backward):
        order += [*forward[warm_up + step : warm_up + step + 1], work]
        if split and step >= rank:  # later ranks postpone more of it
            order.append(weight[owed])
            owed += 1
    return order + weight[owed:]


def _zbv(ranks: int, count: int, rank: int) -> list[str]:
    """Order the work on two stages per rank, of which the second is on the way back.

    Source: torch.distributed.pipelining.schedules, ``ScheduleZBVZeroBubble``; Qi et
    al., Zero bubble pipeline parallelism, 2023, section 6.
    """
    down, up = rank, 2 * ranks - 1 - rank
    total = max(2 * ranks - 1, count)  # plan a full pipeline, then leave out the rest
    order, done = [], {}

    def add(*works: tuple[str, int]) -> None:
        for kind, stage in works:
            i = done[kind, stage] = done.get((kind, stage), -1) + 1
            if i < count:
                order.append(f"{kind}{i}@{stage}")

    def started(stage: int) -> int:
        return done.get(("F", stage), -1) + 1

    add(*[("F", down)] * (2 * (ranks - rank) - 1))
    add(*[("F", up), ("F", down)] * rank)
    add(*[("F", up), ("I", up), ("W", up)] * (ranks - rank))
    while started(up) < started(down) or started(down) < total:
        if started(down) < total:
            add(("F", down))
        add(("I", down), ("W", down), ("F", up), ("I", up), ("W", up))
    add(*[("I", down), ("I", up)] * rank)
    add(*[("I", down), ("W", down)] * (ranks - rank))
    add(*[("W", up)] * rank, *[("W", down)] * rank)
    return order
