"""What was sent, against what DDP and FSDP2 have to send by the formula."""

from collections.abc import Iterator
from typing import Any

from allranks.report import name_ranks
from allranks.sums.units import amount

Record = dict[str, Any]
HEAD = ["sends", "bytes of its parameters", "by the formula", "counted", "ranks"]
NOTE = (
    "Both are bytes of tensors for one backward pass. In a ring of W ranks, each sends "
    "2(W-1)/W of an all_reduce's bytes, and half as much for an all_gather or a "
    "reduce_scatter."
)
BUCKETS = ["bucket", "bytes", "parameters", "first", "last", "of ranks"]


def rows(records: list[Record]) -> list[list[str]]:
    """Return a row for each model in DDP or FSDP2, and for what it sends."""
    who: dict[tuple, list[int]] = {}
    for record in records:
        for row in _rows(record):
            who.setdefault(tuple(row), []).append(record["rank"] or 0)
    return [[*row, name_ranks(ranks)] for row, ranks in who.items()]


def buckets(records: list[Record]) -> list[list[str]]:
    """Return a row for each of DDP's buckets, in the order in which they are sent."""
    who: dict[tuple, list[int]] = {}
    for record in records:
        for model in record["ddp"]:
            for at, (num_bytes, count, first, last) in enumerate(model["buckets"]):
                key = str(at + 1), amount(num_bytes, "B"), str(count), first, last
                who.setdefault(key, []).append(record["rank"] or 0)
    return [[*row, name_ranks(ranks)] for row, ranks in who.items()]


def _rows(record: Record) -> Iterator[list[str]]:
    ddp, fsdp = record["ddp"], record["fsdp"]
    if len(ddp) + len(fsdp) != 1:
        return  # which call belongs to which model is not known
    for model in ddp:
        sent, passes = sum_of(record, "all_reduce", model["group"])
        yield _row("DDP, all_reduce", model["bytes"], 1, model["bytes"], sent, passes)
    for model in fsdp:
        size, trained = model["bytes"], model["trained"]
        sent, passes = sum_of(record, "all_gather", model["group"], forward=True)
        yield _row("FSDP2, all_gather", size, 2, 2 * size, sent, passes)
        sent, passes = sum_of(record, "reduce_scatter", model["group"])
        yield _row("FSDP2, reduce_scatter", trained, 1, trained, sent, passes)


def _row(
    what: str, size: int, times: int, formula: int, sent: int, passes: int
) -> list[str]:
    counted = sent / max(passes, 1)
    ratio = counted / max(formula, 1)
    close = "the same" if abs(ratio - 1) < 0.005 else f"{ratio:.3g} times that"
    law = f"{times} × {amount(size, 'B')}" if times > 1 else amount(formula, "B")
    return [what, amount(size, "B"), law, f"{amount(counted, 'B')}, {close}"]


def sum_of(
    record: Record, op: str, group: list[int], forward: bool = False
) -> tuple[int, int]:
    """Return the bytes of an op in backward, and the number of backward passes.

    Args:
        record: of a process.
        op: such as "all_reduce".
        group: the ranks.
        forward: whether calls outside of backward count, too, as FSDP2's do.
    """
    found = [
        call["bytes"] * call["times"]
        for call in record["calls"]
        if call["op"] == op and list(call["group"]) == group and (call["in"] or forward)
    ]
    return sum(found), record["backwards"]
