"""One batch of all ranks' batches, for the preflight."""

from collections.abc import Mapping

import torch

from .digests import as_bytes
from .exchange import Exchange, GuardError
from .loaders import PLAIN

WHERE = "preflight, joining the ranks' batches"


def join(exchange: Exchange, batches: list):
    """Join the batches of all ranks, on every rank: tensors along dim 0."""
    error = None
    try:
        own = _columns(batches)
    except (TypeError, ValueError, RuntimeError) as found:
        error = found
    exchange.agree(WHERE, error)
    return _exchanged(exchange, own)


def _columns(batches: list):
    """This rank's batches as one: nested as each of them is."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {key: _columns([batch[key] for batch in batches]) for key in first}
    if isinstance(first, list | tuple):
        columns = map(list, zip(*batches, strict=True))
        return _like(first, map(_columns, columns))
    if torch.is_tensor(first):
        return torch.cat(batches) if first.dim() else first
    if not isinstance(first, PLAIN):
        raise TypeError(
            f"a batch holds a {type(first).__name__}; tensors in dicts, lists and "
            "tuples can be joined. Give those, and build it from them in loss()"
        )
    return first


def _exchanged(exchange: Exchange, own):
    if isinstance(own, dict):
        return {key: _exchanged(exchange, value) for key, value in own.items()}
    if isinstance(own, list | tuple):
        return _like(own, [_exchanged(exchange, value) for value in own])
    if not torch.is_tensor(own) or not own.dim():
        return own
    shapes = exchange.integers(WHERE, list(own.shape))
    if len({tuple(shape[1:]) for shape in shapes}) > 1:
        raise GuardError(
            f"{WHERE}: the ranks' batches have the shapes {shapes}, by rank. Pad or "
            "cut the batches of the preflight to one shape."
        )
    parts = exchange.bytes(WHERE, as_bytes(own.detach()))
    whole = [
        part.clone().view(own.dtype).view(shape)
        for part, shape in zip(parts, shapes, strict=True)
    ]
    return torch.cat(whole).to(own.device)


def _like(first, items):
    return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
