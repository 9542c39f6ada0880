"""Invariants of what is reported: the same value on all ranks, and the exact mean."""

from typing import Any

import torch
from torch import nn

from allranks.guard.configuration import describe
from allranks.guard.digests import digest_all, number, settle
from allranks.guard.exchange import Exchange, GuardError, int64, names
from allranks.guard.replicas import Replicas


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
    rows = settle([replicas.numbers(found) for found in kinds.values()])[0]
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
        raise GuardError(
            f"metric: {counted:g} samples were counted ({by_rank} by rank) of "
            f"{samples}. A sampler that pads repeats some: take every W-th sample."
        )
    values = _doubles(exchange, "a metric", [float(value)]).flatten().tolist()
    off = [abs(v - exact) > 1e-5 * max(abs(exact), 1e-12) for v in values]
    if any(off):
        said = exchange.by_ranks([f"{v:.6g}" for v in values])
        raise GuardError(
            f"metric: reported is {said}; the mean over all {counted:g} samples is "
            f"{exact:.6g} ({by_rank} each). Add up totals and counts; divide then."
        )


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
