"""Invariants of what is reported: the same value on all ranks, and the exact mean."""

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

import torch
from torch import nn

from allranks.guard.configuration import describe
from allranks.guard.datasets import batch_rows
from allranks.guard.digests import digest_all, number, settle
from allranks.guard.exchange import Exchange, GuardError, int64, names, union
from allranks.guard.replicas import Replicas

COUNTED = (
    "{}: {} samples were counted ({} by rank) of {}. A sampler that pads repeats some: "
    "take every W-th sample."
)


def same(exchange: Exchange, replicas: Replicas, values: dict[str, Any]) -> None:
    """Raise if a named value is not the same on all ranks."""
    where = f"same({', '.join(values)})"
    tensors: dict[str, torch.Tensor] = {}
    buffers = {id(b) for b in replicas.model.buffers()}
    for name, value in values.items():
        if isinstance(value, nn.Module):  # a loss with weights, a moving average
            inside = [*value.named_parameters(), *value.named_buffers()]
            tensors |= {f"{name}.{key}": tensor for key, tensor in inside}
            buffers |= {id(b) for b in value.buffers()}
            value = describe(value)
        tensors[name] = _tensor(value)
    kinds: dict[str, dict[str, torch.Tensor]] = {"value": {}, "buffer's value": {}}
    for name, t in tensors.items():
        kind = "buffer's value" if id(t) in buffers else "value"
        kinds[kind][f"{name}, {t.dtype} {tuple(t.shape)}"] = t.detach()
    rows = settle([replicas.numbers(one) for one in kinds.values()])[0]
    replicas.compare(where, kinds, exchange.parts(where, rows))


def apart(exchange: Exchange, values: dict[str, Any]) -> None:
    """Raise if two ranks have the same value."""
    where = f"apart({', '.join(values)})"
    own = [digest_all([_tensor(value)]) for value in values.values()]
    table = exchange.integers(where, own)
    for place, name in enumerate(values):
        for ranks in exchange.split([row[place] for row in table]).values():
            if len(ranks) > 1:
                raise GuardError(
                    f"{where}: {name} is the same on {names(ranks)}. Each rank needs "
                    "its own: seed with seed + rank once the model is built."
                )


def mean(
    exchange: Exchange, total: float, count: float
) -> tuple[float, float, list[float]]:
    """Return the mean over all ranks' items, their number, and each rank's count."""
    table = _doubles(exchange, "a mean", [float(total), float(count)])  # (W, 2)
    totals, counts = table.sum(dim=0).tolist()
    return totals / counts if counts else float("nan"), counts, table[:, 1].tolist()


def check(
    exchange: Exchange, value: float, total: float, count: float, samples: int | None
) -> None:
    """Raise if a reported value is not the mean, or samples were not counted once.

    It knows means only: no totals and counts tell whether an AUC or a median is right.

    Args:
        exchange: between the ranks.
        value: the mean that is reported.
        total: this rank's sum over its items.
        count: this rank's number of items.
        samples: how many there should be on all ranks together; None if unknown.
    """
    exact, counted, each = mean(exchange, total, count)
    by_rank = ", ".join(f"{v:g}" for v in each)
    if samples is not None and counted != samples:
        raise GuardError(COUNTED.format("metric", f"{counted:g}", by_rank, samples))
    said = (
        f"the mean over all {counted:g} samples is {exact:.6g} ({by_rank} each). Add "
        "up totals and counts; divide then."
    )
    _compare(exchange, "metric", value, exact, said)


def check_of(
    exchange: Exchange,
    value: float,
    function: Callable[..., Any],
    parts: Sequence[Any],
    samples: int | None,
) -> None:
    """Raise if a reported value is not what a function makes of all ranks' samples.

    Args:
        exchange: between the ranks.
        value: what is reported.
        function: takes what ``parts`` are, for all samples at once.
        parts: this rank's tensors, with the samples along the first dim.
        samples: how many there should be on all ranks together; None if unknown.
    """
    where, exact, error = "metric_of", 0.0, None
    counts = [row[0] for row in exchange.integers(where, [batch_rows(parts)])]
    if samples is not None and sum(counts) != samples:
        raise GuardError(COUNTED.format(where, sum(counts), counts, samples))
    joined = union(exchange, [list(parts)], f"{where}, joining the ranks' samples")
    # Every rank computes it, from the same samples in the same order; if the function
    # raises on one rank only, the others must not wait for its next message.
    try:
        exact = float(function(*joined))
    except Exception as failed:
        error = failed
    exchange.agree(where, error)
    said = (
        f"for all {sum(counts)} samples at once it is {exact:.6g}. No mean of the "
        "ranks' own AUCs, F1 scores or medians is right: gather what they are computed "
        "from, and compute it once."
    )
    _compare(exchange, where, value, exact, said)


def _compare(
    exchange: Exchange, where: str, value: float, exact: float, said: str
) -> None:
    values = _doubles(exchange, where, [float(value)]).flatten().tolist()  # (W,)
    # Rounding in float32 is smaller.
    most = 1e-5 * max(abs(exact), 1e-12)
    if not all(abs(v - exact) <= most or (isnan(v) and isnan(exact)) for v in values):
        reported = exchange.by_ranks([f"{v:.6g}" for v in values])
        raise GuardError(f"{where}: reported is {reported}; {said}")


def _tensor(value: Any) -> torch.Tensor:
    if torch.is_tensor(value):
        return value
    try:
        return torch.tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError):  # strings, such as settings
        return int64(number(repr(value)))


def _doubles(exchange: Exchange, where: str, values: list[float]) -> torch.Tensor:
    """Return every rank's numbers, exactly: ``(W, n)`` in float64."""
    own = torch.tensor(values, dtype=torch.float64, device="cpu").view(torch.int64)
    return int64(exchange.integers(where, own.tolist())).view(torch.float64)
