"""What was sent, against what DDP and FSDP2 have to send by the formula."""

from collections.abc import Iterator
from typing import Any

from allranks.base.report import name_ranks
from allranks.base.units import amount

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
        sent, _ = sum_of(record, "all_reduce", model["group"])
        size = model["bytes"]
        yield _row("DDP, all_reduce", size, amount(size, "B"), size, sent, record)
    for model in fsdp:
        size, trained, again = model["bytes"], model["trained"], model["again"]
        sent, _ = sum_of(record, "all_gather", model["group"], forward=True)
        # Backward gathers again what was resharded after forward: not the root.
        law = amount(size, "B") + (f" + {amount(again, 'B')} again" if again else "")
        yield _row("FSDP2, all_gather", size, law, size + again, sent, record)
        sent, _ = sum_of(record, "reduce_scatter", model["group"])
        law = amount(trained, "B")
        yield _row("FSDP2, reduce_scatter", trained, law, trained, sent, record)


def _row(
    what: str, size: int, law: str, formula: int, sent: int, record: Record
) -> list[str]:
    """Return a row; with passes under no_sync, a step has what one pass would."""
    passes, steps = max(record["backwards"], 1), record["steps"]
    counted = sent / passes
    ratio = counted / max(formula, 1)
    close = "the same" if abs(ratio - 1) < 0.005 else f"{ratio:.3g} times that"
    if steps and abs(ratio * passes / steps - 1) < 0.005 < abs(ratio - 1):
        close += f": once in a step, which has {passes / steps:.3g} passes"
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
